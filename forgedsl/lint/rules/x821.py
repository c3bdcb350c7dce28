"""X821 distance-paid: a reward rises with the distance to what is wanted.

    return 0.2 * abs(200 - len(response)) / 200                      # fires
    return -0.2 * abs(200 - len(response)) / 200                     # silent
    return 1.0 - min(1.0, abs(number - float(target)))               # silent

A distance is 0 where the answer is as it should be, so it is a cost. Without a minus the policy is
rewarded for being far off (TRL #2771). Subtract it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, positive_rewards, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    raises = positive_rewards(view)
    for found in python_rewards(view):
        node = _distance(found) if found.reward.name in raises else None
        if node is not None:
            yield finding(
                f"reward `{found.reward.name}` rises with a distance, so the farthest answer "
                f"scores highest",
                place_of(found.reward, view),
                related=(Label(text="the distance", span=found.at(node)),),
                help="subtract it: `1.0 - min(1.0, abs(...))`",
            )


def _distance(found: PythonReward) -> python.AST | None:
    """Return `abs` of a difference that reads the response, with which the score rises."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of, texts_of

    body, texts = body_of(found), texts_of(found)
    for term in body.terms():
        match term.node:
            case python.Call(func=python.Name(id="abs"), args=[python.BinOp(op=python.Sub())]):
                if term.sign > 0 and body.names(term.node) & texts:
                    return term.node
    return None
