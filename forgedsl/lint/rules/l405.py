"""L405 unbounded-exp: the argument of an exponential has no finite bound.

Log-probs are unbounded below, so a log-ratio can be anything; exp of more than 88 is infinite in
f32, and one infinite token makes the loss and every gradient NaN. TitanRL clamps log-ratios at
10, verl at 20. One token of a long run made all logits NaN (miles #1363), one sequence all of a
batch (OpenRLHF #1293).

    ratio = exp(logprob - behavior)                              # fires
    ratio = exp(clamp(logprob - behavior, -20.0, 20.0))          # silent

Clamp the argument. The rule finds the bound by interval analysis, through all names and functions.
PPO's clip does not help: it comes after the exponential.
"""

from forgedsl.diagnostics import Diagnostic, Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView, Spot
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.intervals import EXP_MAX, INF

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        seen: set[Span] = set()
        for origin, high in loss.cached(_unbounded):
            spot = loss.spot(origin)
            if spot.span not in seen:
                seen.add(spot.span)
                yield _report(loss, spot, high)


def _unbounded(loss: LossView) -> tuple[tuple[int, float], ...]:
    """Return the values whose exponential may overflow, in the loss or its gradient, with their
    bound."""
    facts = loss.facts
    found = []
    for node, value in enumerate(facts.gradient.values):
        if value.op in ("exp", "expm1"):
            high = facts.analysis.guarded(node, value.args[0]).hi
            origin = facts.origin(node)
            if high > EXP_MAX and origin is not None:
                found.append((origin, high))
    return tuple(found)


def _report(loss: LossView, spot: Spot, high: float) -> Diagnostic:
    bound = "has no upper bound" if high == INF else f"can be {high:.3g}"
    return finding(
        f"the argument of this exponential {bound}",
        spot,
        notes=("exp of more than 88 is infinite in f32",),
        help="clamp it, `exp(clamp(x, -20.0, 20.0))`",
        fix=_clamp(spot),
    )


def _clamp(spot: Spot) -> Fix | None:
    node = spot.node
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    span = node.args[0].value.span
    start, end = Span(span.file, span.start, span.start), Span(span.file, span.end, span.end)
    edits = (Edit(text="clamp(", span=start), Edit(text=", -20.0, 20.0)", span=end))
    return Fix(message="clamp the argument to [-20, 20]", edits=edits, safe=False)
