"""X830 right-below-wrong: a right answer may score less than a wrong one.

    brief = 0.5 - min(len(response), LIMIT) / LIMIT      # from 0.5 down to -0.5
    return brief if right else min(0.0, brief)           # fires: -0.5 for a long right answer
    return 1.0 + brief if right else min(0.0, brief)     # silent: 0.5 and more for a right one

A right answer that is long then scores below a wrong one that is short, and the policy is trained
away from it (open-r1 #360). Let every right answer score above every wrong one. The rule compares
the ranges of the two sides of `... if right else ...`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import paid, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.python_bodies import Body
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    raises = paid(view)
    for found in python_rewards(view):
        node, low, high = _crossed(found) if found.reward.name in raises else (None, 0.0, 0.0)
        if node is not None:
            yield finding(
                f"reward `{found.reward.name}` gives a right answer down to {low:g}, and a wrong "
                f"one up to {high:g}",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help="add a number to the right side, so that it is always the larger one",
            )


def _crossed(found: PythonReward) -> tuple[python.AST | None, float, float]:
    """Return a choice by rightness, the least value of a right and the largest of a wrong
    answer, if they cross."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of, parameters

    body, targets = body_of(found), parameters(found, "target")
    for value in body.returned:
        node = body.value(value)
        if not isinstance(node, python.IfExp) or not _is_right(body, node.test, targets):
            continue
        right, wrong = body.range(node.body), body.range(node.orelse)
        if right.is_bounded and wrong.is_bounded and right.lo < wrong.hi:
            return node, right.lo, wrong.hi
    return None, 0.0, 0.0


def _is_right(body: Body, test: python.expr, targets: set[str]) -> bool:
    """True for a test that compares something with the target for equality."""
    import ast as python

    return not isinstance(test, python.UnaryOp) and any(
        isinstance(node, python.Compare)
        and all(isinstance(op, python.Eq) for op in node.ops)
        and bool(body.names(node) & targets)
        for node in body.nodes(test)
    )
