"""Records episodes of Gymnasium's CartPole-v1 in cart_pole.txt, beside this file.

    pip install gymnasium==1.4.0
    python make_cart_pole.py

One block an episode. Its first line is `episode <name> <seed> <steps>`, then comes the start, then one line a step:

    start                                     <state x 4> <observation x 4>
    <action> <reward> <terminated> <truncated> <state x 4> <observation x 4>

The state is Gymnasium's own, in double precision; numbers are written with as many digits as it takes to read
exactly the same value back.
"""

import pathlib

import gymnasium
import numpy as np

POSITION_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * np.pi / 360


def at_random(seed):
    rng = np.random.default_rng(seed)
    return lambda state: int(rng.integers(2))


def always(action):
    return lambda state: action


def balance(lean=0.0, pull=0.05):
    """Keeps the pole near the angle `lean`; the pull brings the cart back to the middle."""
    return lambda state: int(3 * (state[2] - lean) + state[3] + pull * state[0] + 2 * pull * state[1] > 0)


# name, seed, policy, and how the episode must end
EPISODES = [
    *((f"random_{seed}", seed, at_random(seed), "angle") for seed in range(6)),
    ("left", 10, always(0), "right angle"),
    ("right", 11, always(1), "left angle"),
    ("drift_right", 12, balance(lean=0.06, pull=0.0), "right position"),
    ("drift_left", 13, balance(lean=-0.06, pull=0.0), "left position"),
    ("balance", 14, balance(), "truncated"),
]


def ending(state, terminated, truncated):
    if truncated:
        assert not terminated
        return "truncated"
    x, _, angle, _ = state
    words = []
    if abs(x) > POSITION_LIMIT:
        words += ["right" if x > 0 else "left", "position"]
    if abs(angle) > ANGLE_LIMIT:
        words += ["right" if angle > 0 else "left", "angle"]
    return " ".join(words)


def numbers(state, observation):
    assert observation.dtype == np.float32
    return " ".join([*(repr(float(x)) for x in state), *(str(x) for x in observation)])


def record(name, seed, policy, expected):
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=seed)
    lines = ["start " + numbers(env.unwrapped.state, observation)]
    terminated = truncated = False
    while not (terminated or truncated):
        action = policy(env.unwrapped.state)
        observation, reward, terminated, truncated, _ = env.step(action)
        lines.append(f"{action} {reward:g} {terminated:d} {truncated:d} " + numbers(env.unwrapped.state, observation))
    end = ending(env.unwrapped.state, terminated, truncated)
    assert expected in end, f"{name} ended by {end!r} after {len(lines) - 1} steps, not by {expected!r}"
    return [f"episode {name} {seed} {len(lines) - 1}", *lines]


def main():
    lines = [f"# CartPole-v1 of gymnasium {gymnasium.__version__}, numpy {np.__version__}; see make_cart_pole.py"]
    for episode in EPISODES:
        lines += record(*episode)
    pathlib.Path(__file__).with_name("cart_pole.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
