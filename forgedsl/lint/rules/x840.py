"""X840 schedule-turns-back: a cosine of an answer's length is not limited to half a period.

    progress = r.num_tokens / self.max_len                     # fires
    progress = min(1.0, r.num_tokens / self.max_len)           # silent
    return 0.5 + 0.25 * (1.0 + math.cos(math.pi * progress))

Past `max_len` the cosine rises again, and an answer of twice that length is rewarded like the
shortest (TRL #6066, open-r1 #312). Limit the ratio of length and `max_len` to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, called_name, place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")
LIMITS = ("min", "clip", "clamp", "minimum")


def check(view: View) -> Findings:
    raises = positive_rewards(view)
    for found in python_rewards(view):
        node = found.once(_turning) if found.reward.name in raises else None
        if node is not None:
            yield finding(
                f"the cosine of reward `{found.reward.name}` rises again for answers that are "
                "longer than its limit",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help="limit the ratio: `min(1.0, length / limit)`",
            )


def _turning(found: PythonReward) -> python.AST | None:
    """Return a cosine of a length over a limit that nothing keeps below 1."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of

    body = body_of(found)
    for node in python.walk(found.definition):
        if not isinstance(node, python.Call) or called_name(node) != "cos" or not node.args:
            continue
        inner = list(body.nodes(node.args[0]))
        lengths = [n for n in inner if isinstance(n, python.BinOp) and _is_share(body, n)]
        is_limited = any(isinstance(n, python.Call) and called_name(n) in LIMITS for n in inner)
        used = {n.id for n in inner if isinstance(n, python.Name)}
        tests = [
            n.test for n in python.walk(found.definition) if isinstance(n, python.If | python.IfExp)
        ]
        orders = (python.Lt, python.Gt, python.LtE, python.GtE)
        is_tested = any(
            isinstance(c, python.Compare)
            and isinstance(c.ops[0], orders)
            and (
                {n.id for n in python.walk(c) if isinstance(n, python.Name)} & used
                or "num_tokens" in python.unparse(c)
            )
            for test in tests
            for c in python.walk(test)
        )
        if lengths and not is_limited and not is_tested:
            return node
    return None


def _is_share(body: object, node: python.BinOp) -> bool:
    """True for a length over a limit."""
    import ast as python

    if not isinstance(node.op, python.Div):
        return False
    for each in body.nodes(node.left):  # type: ignore[attr-defined]
        if isinstance(each, python.Attribute) and each.attr == "num_tokens":
            return True
        if isinstance(each, python.Call) and called_name(each) == "len":
            return True
    return False
