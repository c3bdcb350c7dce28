"""X821 distance-paid: a reward rises with the distance to what is wanted.

    return 0.2 * abs(200 - len(response)) / 200                      # fires
    return -0.2 * abs(200 - len(response)) / 200                     # silent
    return right + 0.5 * abs(number - gold) / max(1.0, abs(gold))    # fires
    return 1.0 - min(1.0, abs(number - float(target)))               # silent

A distance is 0 where the answer is as it should be, so it is a cost. Without a minus the policy is
rewarded for being far off (TRL #2771). Subtract it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import called_name, place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.python_bodies import Body
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
ALIKE = ("ratio", "quick_ratio", "partial_ratio", "token_sort_ratio", "token_set_ratio",
         "sentence_bleu", "cosine_similarity", "jaro_winkler", "jaccard")  # fmt: skip
"""functions that give more the more alike two texts are"""
RISES = ("sqrt", "log1p", "tanh", "atan", "min", "float", "round")


def check(view: View) -> Findings:
    import ast as python

    raises = positive_rewards(view)
    for found in python_rewards(view):
        node = _distance(found) if found.reward.name in raises else None
        if node is not None:
            alike = isinstance(node, python.Call) and called_name(node) in ALIKE
            yield finding(
                f"reward `{found.reward.name}` falls with similarity, so the farthest answer "
                "scores highest"
                if alike
                else f"reward `{found.reward.name}` rises with a distance, so the farthest answer "
                "scores highest",
                place_of(found.reward, view),
                related=(Label(text="the similarity" if alike else "the distance",
                               span=found.at(node)),),
                help="return it as it is: 1 for equal texts"
                if alike
                else "subtract it: `1.0 - min(1.0, abs(...))`",
            )  # fmt: skip


def _distance(found: PythonReward) -> python.AST | None:
    """Return `abs` of a difference that reads the response, with which the score rises."""

    import ast as python

    from forgedsl.lint.python_bodies import body_of, parameters, texts_of

    body, texts = body_of(found), texts_of(found)
    targets = parameters(found, "target")
    for term in body.terms():
        distance = _rising(body, term.node)
        if distance is not None and term.sign > 0 and body.names(distance) & texts:
            return distance
        alike = body.value(term.node)
        if term.sign < 0 and isinstance(alike, python.Call) and called_name(alike) in ALIKE:
            return alike if body.names(alike) & texts and body.names(alike) & targets else None
    return None


def _rising(body: Body, node: python.expr) -> python.expr | None:
    """Return the `abs` of a difference with which an expression rises: `d`, `math.sqrt(d)`,
    `min(1, d)`, `d / 10`, `d / (1 + d)`."""
    import ast as python

    node = body.value(node)
    match node:
        case python.Call(func=python.Name(id="abs"), args=[inner]):
            inner = body.value(inner)
            return node if isinstance(inner, python.BinOp) and _is_difference(inner) else None
        case python.Call(args=args) if called_name(node) in RISES:
            found = [_rising(body, each) for each in args]
            return next((each for each in found if each is not None), None)
        case python.BinOp(left=left, op=python.Div(), right=python.BinOp(op=python.Add()) as right):
            rises = _rising(body, left)
            parts = (right.left, right.right)
            same = any(python.unparse(left) == python.unparse(each) for each in parts)
            constant = any(body.number(each) is not None for each in parts)
            if same and constant:
                return rises
            return rises if _is_scale(body, right) else None
        case python.BinOp(left=left, op=python.Div() | python.Mult(), right=right):
            number, is_scale = body.number(right), isinstance(node.op, python.Div)
            if number is not None:
                return _rising(body, left) if number > 0 else None
            return _rising(body, left) if is_scale and _is_scale(body, right) else None
    return None


def _is_scale(body: Body, node: python.expr) -> bool:
    """True for a size by which a distance is divided: `abs(x)`, `max(1.0, abs(x))`,
    `abs(x) + 1e-6`, where `x` is no difference."""
    import ast as python

    node = body.value(node)
    match node:
        case python.Call(func=python.Name(id="abs"), args=[inner]):
            inner = body.value(inner)
            return not (isinstance(inner, python.BinOp) and _is_difference(inner))
        case python.Call(func=python.Name(id="max"), args=args):
            return all(body.number(a) is not None or _is_scale(body, a) for a in args)
        case python.BinOp(left=left, op=python.Add(), right=right):
            return all(body.number(a) is not None or _is_scale(body, a) for a in (left, right))
    return False


def _is_difference(node: python.BinOp) -> bool:
    import ast as python

    return isinstance(node.op, python.Sub)
