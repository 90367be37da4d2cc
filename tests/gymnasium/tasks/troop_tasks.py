"""Small Gymnasium environments for the tests, each wrong or odd in one way. Registered when imported."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Count(gymnasium.Env):
    """Observes [step, last action, seed] and can be made to do something else at a step."""

    def __init__(self, at=-1, what="", shape=(3,), dtype="float32", length=1000, start=0, weight=1.0, name="x"):
        space = np.dtype(dtype)
        self.observation_space = Box(0, 255, tuple([shape] if isinstance(shape, int) else shape), space)
        self.action_space = Discrete(4, start=start)
        self.at, self.what, self.length, self.weight = at, what, length, weight
        self.closed = False
        assert isinstance(name, str) and isinstance(weight, float) and isinstance(at, int)

    def observe(self, action):
        observation = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        observation.flat[:3] = [self.t, action, self.seed % 200]
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.what == "reset":
            raise KeyError("no level")
        self.t, self.seed = 0, seed
        return self.observe(0), {}

    def step(self, action):
        self.t += 1
        observation, reward = self.observe(action), self.weight * self.t
        if self.t == self.at:
            if self.what == "raise":
                raise ValueError("the engine\nhas stopped")
            if self.what == "nan":
                observation[1] = np.nan
            if self.what == "reward":
                reward = float("inf")
            if self.what == "shape":
                observation = observation[:2]
            if self.what == "dtype":
                observation = observation.astype("float32") + 0.5
            if self.what == "strided":
                observation = np.repeat(observation, 2)[::2]
            if self.what == "list":
                observation = [int(value) for value in observation]
            if self.what == "string":
                observation = "abc"
            if self.what == "tuple":
                return observation, reward, False, {}
            if self.what == "text":
                return observation, "much", False, False, {}
        over = self.t == self.length
        return observation, np.float64(reward), np.bool_(over and self.what != "limit"), over, {}


class Spaces(Count):
    def __init__(self, space):
        super().__init__()
        if space == "dict":
            self.observation_space = Dict({"a": Box(0, 1, (2,))})
        if space == "continuous":
            self.action_space = Box(-1, 1, (2,))
        if space == "multi":
            self.action_space = MultiDiscrete([2, 3])
        if space == "int64":
            self.observation_space = Box(0, 9, (2,), np.int64)


gymnasium.register("troop/Count-v0", Count, disable_env_checker=True, order_enforce=False)
gymnasium.register("troop/Short-v0", Count, max_episode_steps=5, reward_threshold=12.5, disable_env_checker=True)
gymnasium.register("troop/Spaces-v0", Spaces, disable_env_checker=True)
