"""Writes atari.txt: trajectories of ale_py's own AtariVectorEnv under fixed seeds and actions, for tests/gymnasium.

    build/python/bin/python tests/golden/make_atari.py > tests/golden/atari.txt

Pictures have the emulator's own size, so that no interpolation, which may differ between processors, is in them.
A line a step and environment: action, true reward, lives, over, and the FNV-1a hash of the whole stack of pictures.
"""

import numpy as np
from ale_py.vector_env import AtariVectorEnv

# The seeds are those of troop's streams Random(1, "environment", i), without their lowest 33 bits.
SEEDS = [562391623, 2103441365]
GAMES = {
    "pong": {},
    "breakout": {"use_fire_reset": True},
    "seaquest": {"repeat_action_probability": 0.25, "full_action_space": True},
}
STEPS = 400


def fnv(data):
    value = 0xCBF29CE484222325
    words = np.frombuffer(data, "<u8")
    for word in words.tolist():
        value = ((value ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    print("# made by make_atari.py with ale-py 0.12.1: step environment action reward lives over hash")
    print("seeds", *SEEDS)
    for game, settings in GAMES.items():
        settings = {"use_fire_reset": False, **settings}
        envs = AtariVectorEnv(game, len(SEEDS), img_height=210, img_width=160, noop_max=31, reward_clipping=False,
                              autoreset_mode="NextStep", **settings)
        pictures, info = envs.reset(seed=np.array(SEEDS))
        print("game", game, len(SEEDS), STEPS, envs.single_action_space.n)
        print("start", *(f"{fnv(p.tobytes()):016x}" for p in pictures))
        state, over = 1, np.zeros(len(SEEDS), bool)
        for t in range(STEPS):
            actions = []
            for _ in SEEDS:
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                actions.append((state >> 33) % envs.single_action_space.n)
            pictures, rewards, over, _, info = envs.step(np.array(actions))
            first = ["-"] * len(SEEDS)
            lives = info["lives"].tolist()
            if over.any():  # the next episode begins before the next step, as troop has it
                before = pictures
                start, info = envs.reset(options={"reset_mask": over})
                first = [f"{fnv(start[i].tobytes()):016x}" if over[i] else "-" for i in range(len(SEEDS))]
                pictures = before
            for i in range(len(SEEDS)):
                print(t, i, actions[i], rewards[i], lives[i], int(over[i]), end=" ")
                print(f"{fnv(pictures[i].tobytes()):016x}", first[i])


main()
