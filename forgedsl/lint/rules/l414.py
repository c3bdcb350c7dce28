"""L414 non-finite-behavior: sampler log-probs outside the rollout's mask may not be finite.

vLLM reports -inf or NaN for some tokens; the generator takes those out of `mask`. A reduction under
another mask still sees them, and one such token makes the loss NaN.

    loss pg(..., behavior: [B, T] f32, keep: [B, T] bool) {
      minimize token_mean(-ratio * adv, keep)                              # fires
    }

Use `mask`, or add the guard: `keep and is_finite(behavior)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Edit, Fix
from forgedsl.lint.finding import rule
from forgedsl.lint.losses import LossView, Spot, conjuncts
from forgedsl.lint.view import View
from forgedsl.losses.intervals import MASKED
from forgedsl.losses.tree import reachable
from forgedsl.source import Span
from forgedsl.syntax import ast

finding = rule(__doc__, "I")


def check(view: View) -> Iterator[Diagnostic]:
    for loss in view.losses:
        node = loss.once(_unguarded)
        if node is not None:
            yield _report(loss, loss.spot(node))


def _unguarded(loss: LossView) -> int | None:
    """The first reduction that reads `behavior` outside of the rollout's mask."""
    for node, value in enumerate(loss.tree.values):
        if value.op not in MASKED or len(value.args) < 2 or not _reads(loss, value.args[0]):
            continue
        if not loss.is_pairs and not _is_guarded(loss, value.args[1]):
            return node
    return None


def _reads(loss: LossView, node: int) -> bool:
    """Whether a value depends on `behavior` by something else than a reduction already made."""
    values, pending = loss.tree.values, [node]
    while pending:
        value = values[pending.pop()]
        if value.op == "input" and value.attr == "behavior":
            return True
        if value.op == "where" and _tests_finite(loss, value.args[0]):
            continue
        if value.op not in MASKED and value.op != "is_finite":
            pending += value.args
    return False


def _is_guarded(loss: LossView, mask: int) -> bool:
    parts = [loss.tree.values[n] for n in conjuncts(loss.tree, mask)]
    if any(p.op == "valid" or (p.op == "input" and p.attr == "mask") for p in parts):
        return True
    return _tests_finite(loss, mask)


def _tests_finite(loss: LossView, condition: int) -> bool:
    values = loss.tree.values
    tests = [n for n in conjuncts(loss.tree, condition) if values[n].op == "is_finite"]
    return any(values[i].attr == "behavior" for t in tests for i in reachable(values, [t]))


def _report(loss: LossView, spot: Spot) -> Diagnostic:
    return finding(
        "sampler log-probs may not be finite outside `mask`",
        spot,
        help="use the rollout's `mask`, or add `and is_finite(behavior)` to this one",
        fix=_guard(spot),
    )


def _guard(spot: Spot) -> Fix | None:
    node = spot.node
    if not isinstance(node, ast.Call) or not isinstance(node.args[-1].value, ast.Path):
        return None
    span = node.args[-1].value.span
    end = Span(span.file, span.end, span.end)
    edits = (Edit(text=" and is_finite(behavior)", span=end),)
    return Fix(message="add the guard", edits=edits, safe=False)
