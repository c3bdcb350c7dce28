"""The Python rewards that --deep called, for rules X850 and following: each with what it gave."""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.lint.calls import RewardCalls
from forgedsl.lint.rewards import PythonReward, paid, python_rewards
from forgedsl.lint.view import View


def called_rewards(view: View) -> Iterator[tuple[PythonReward, RewardCalls]]:
    """Yield the Python rewards that were called, with the results."""
    found = view.calls.rewards if view.calls is not None else {}
    for reward in python_rewards(view) if found else ():
        if reward.reward.name in found:
            yield reward, found[reward.reward.name]


def paid_rewards(view: View) -> Iterator[tuple[PythonReward, RewardCalls]]:
    """Yield those of them that are given the target and that the flow's score adds: a right answer
    must be paid more."""
    names = paid(view)
    for reward, calls in called_rewards(view):
        if calls.reads_target and reward.reward.name in names:
            yield reward, calls
