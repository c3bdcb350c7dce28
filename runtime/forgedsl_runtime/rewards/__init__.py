"""Reward functions: the standard ones, and the loading of all kinds.

    job.Reward --load_reward--> callable(rollout, target) -> finite float (or a coroutine of one)

Standard rewards are functions `f(rollout, target, *, settings) -> float` named as in `std/rl`.
A standard reward accepts any text of a model. It raises only for mistakes of the pipeline's author
(a target that is neither text nor a number).
"""

from forgedsl_runtime.rewards.loading import RewardFunction, load_reward
from forgedsl_runtime.rewards.math_equal import answer_of, answers_equal, math_equal
from forgedsl_runtime.rewards.text import contains, exact, format_regex, overlong, think_tags

__all__ = [
    "RewardFunction",
    "answer_of",
    "answers_equal",
    "contains",
    "exact",
    "format_regex",
    "load_reward",
    "math_equal",
    "overlong",
    "think_tags",
]
