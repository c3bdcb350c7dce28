"""Results of the calls that --deep made, for rules X850 and following: Python rewards with the
scores of their answers, and environments with their games."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forgedsl.lint.call_results import EnvironmentPlays, RewardCalls
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.rewards import PythonReward, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View
from forgedsl.source import SourceFile, Span

NEVER_MEANT = (
    "AttributeError", "TypeError", "IndexError", "ZeroDivisionError", "NameError",
    "UnboundLocalError", "RecursionError", "OverflowError", "re.error", "UnicodeEncodeError",
)  # fmt: skip
"""errors that are always mistakes of the program, and never a way to reject an answer. KeyError is
not one: the key may be an environment variable that is set only in a run."""


def called_rewards(view: View) -> Iterator[tuple[PythonReward, RewardCalls]]:
    """Yield the Python rewards that were called, with the results."""
    found = view.calls.rewards if view.calls is not None else {}
    for reward in python_rewards(view) if found else ():
        if reward.reward.name in found:
            yield reward, found[reward.reward.name]


def target_rewards(view: View) -> Iterator[tuple[PythonReward, RewardCalls]]:
    """Yield the called rewards that read the target and have a positive weight in the flow's score.
    A right answer must get more from them than a wrong one."""
    names = positive_rewards(view)
    for reward, calls in called_rewards(view):
        if calls.reads_target and reward.reward.name in names:
            yield reward, calls


def played_environments(view: View) -> Iterator[tuple[PythonClass, EnvironmentPlays]]:
    """Yield the environments that were played, with the games."""
    found = view.calls.environments if view.calls is not None else {}
    for env in python_environments(view) if found else ():
        if env.env.name in found:
            yield env, found[env.env.name]


def split_error(error: str, source: SourceFile) -> tuple[str, Span | None]:
    """Return the text of an error, and the line of the Python file where it was raised."""
    found = re.fullmatch(r"(.*) \(([^():]+):(\d+)\)", error, re.S)
    if found is None or found[2] != source.name.rpartition("/")[2]:
        return error, None
    line = int(found[3])
    text = source.line(line)
    start = source.line_starts[line - 1]
    return found[1], Span(
        source.name, start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    )
