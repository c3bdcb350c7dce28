"""D672 ratings-exchanged: the answer with the lower rating is the chosen one.

    chosen   = row.a if row.a_score < row.b_score else row.b             # fires
    rejected = row.b if row.a_score < row.b_score else row.a
    chosen   = row.a if row.a_score > row.b_score else row.b             # silent

The policy is then trained towards the worse answer of every pair. The rule knows by their names the
columns for which more is better (`rating`, `score`, `reward`, `votes`, `grade`, `likes`), and those
for which less is better (`rank`, `loss`, `errors`, `perplexity`). A rating belongs to the answer
whose name has most in common with its own.
"""

from __future__ import annotations

import re

from forgedsl.ir.program import Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast

finding = rule(__doc__, "W")
MORE = re.compile(r"rating|score|reward|votes|grade|likes|quality|preference|stars", re.IGNORECASE)
LESS = re.compile(r"rank|loss|error|perplexity|ppl|distance|penalty", re.IGNORECASE)


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        for name, better in (("chosen", True), ("rejected", False)):
            setting = dataset.settings[name]
            expr = setting.value.expr if isinstance(setting.value, Deferred) else None
            rating = _exchanged(expr, better) if isinstance(expr, ast.Conditional) else ""
            if rating:
                yield finding(
                    f"`{name}` of `{dataset.name}` is the {'worse' if better else 'better'} answer "
                    f"by `row.{rating}`",
                    place(setting, dataset),
                    help="reverse the comparison",
                )
                break


def _exchanged(expr: ast.Conditional, wants_better: bool) -> str:
    """Return the rating by which `A if TEST else B` takes the wrong answer; "" if it takes the
    right one, or if this is not known."""
    test, then, other = expr.test, _column(expr.then), _column(expr.otherwise)
    if not isinstance(test, ast.Binary) or test.operator not in ("<", "<=", ">", ">="):
        return ""
    left, right = _column(test.left), _column(test.right)
    if not (then and other and left and right):
        return ""
    sides = _owners((left, right), (then, other))
    more, less = (bool(kind.search(left) and kind.search(right)) for kind in (MORE, LESS))
    if sides is None or more == less:
        return ""
    takes_left = sides == (then, other)
    takes_greater = takes_left == (test.operator in (">", ">="))
    return left if (takes_greater == more) != wants_better else ""


def _column(node: ast.Expr) -> str:
    if isinstance(node, ast.Path) and node.parts[0] == "row" and len(node.parts) > 1:
        return ".".join(map(str, node.parts[1:]))
    return ""


def _owners(ratings: tuple[str, str], answers: tuple[str, str]) -> tuple[str, str] | None:
    """Return the answers to which two ratings belong, by what their names have in common."""
    same = [[_alike(rating, answer) for answer in answers] for rating in ratings]
    if same[0][0] + same[1][1] > same[0][1] + same[1][0]:
        return answers
    if same[0][0] + same[1][1] < same[0][1] + same[1][0]:
        return answers[1], answers[0]
    return None


def _alike(rating: str, answer: str) -> int:
    """Return how many parts of a name are in the other one."""
    one, other = (
        set(re.split(r"[_.\d]+|(?<=\D)(?=\d)", name.lower())) for name in (rating, answer)
    )
    digits = set(re.findall(r"\d+", rating)) & set(re.findall(r"\d+", answer))
    return len((one & other) - {""}) + len(digits)
