"""R540 stops-before-sandbox: a reward has less time than the program that it runs.

    LIMITS = Limits(wall=10.0, ...)                              # in the Python of the reward
    reward passes = tests.passes { timeout = 2s, ... }           # fires
    reward passes = tests.passes { timeout = 40s, ... }          # silent

A program of the policy may run for 10 seconds, and then counts as a failed test. If the reward is
stopped first, the slow program is not a failed test but a failed reward: its sample is dropped, or
gets the score of `on_error`, and the policy does not learn that the program is slow (AReaL #1426).
Give the reward the time of all programs that a call runs, and some more. The rule reads
`Limits(wall=...)` and `subprocess.run(..., timeout=...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")
RUNS = ("run", "call", "check_call", "check_output", "communicate", "wait")


def check(view: View) -> Findings:
    for found in python_rewards(view):
        timeout = found.reward.settings["timeout"].value
        limit, node = found.once(_longest)
        if node is not None and timeout < limit:
            yield finding(
                f"`{found.reward.name}` is stopped after {timeout:g} s, and a program that it runs "
                f"after {limit:g} s",
                place_of(found.reward, view, "timeout"),
                related=(Label(text="here", span=found.at(node)),),
                help=f"`timeout = {4 * limit:g}s`: the time of all programs of a call, and more",
            )


def _longest(found: PythonReward) -> tuple[float, python.AST | None]:
    """Return the longest time that a program may run, and where it is written."""
    import ast as python

    if not any(word in found.source.text for word in ("timeout", "Limits")):
        return 0.0, None
    constants = {
        target.id: node.value
        for node in found.module.body
        if isinstance(node, python.Assign)
        for target in node.targets
        if isinstance(target, python.Name)
    }
    longest: tuple[float, python.AST | None] = (0.0, None)
    for node in python.walk(found.module):
        if not isinstance(node, python.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        wanted = "wall" if name == "Limits" else "timeout" if name in RUNS else ""
        for word in node.keywords:
            value = word.value
            if isinstance(value, python.Name):
                value = constants.get(value.id, value)
            number = value.value if isinstance(value, python.Constant) else None
            if word.arg == wanted and isinstance(number, int | float) and number > longest[0]:
                longest = (float(number), node)
    return longest
