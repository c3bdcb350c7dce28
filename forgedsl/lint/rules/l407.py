"""L407 zero-division: a divisor, or the argument of a logarithm, may be 0.

    w = adv / std_of_batch                       # fires: nothing keeps it from 0
    e = log(p)                                   # fires unless p > 0
    w = adv / max(std_of_batch, 1e-6)            # silent

The loss and all gradients then become infinite or NaN. A branch does not protect the derivative:
for x = 0, `log(x) if x > 0 else 0.0` has the right value, but its gradient is 0 / 0. Guard the
operand instead: `log(x if x > 0 else 1.0)`. A row without trained tokens made DPO's gradients NaN
(open-instruct #1625), and a token of probability 0 the entropy (TRL #7221).
"""

from forgedsl.diagnostics import Diagnostic, Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import hand_written
from forgedsl.lint.losses import STANDARD, LossView, Spot
from forgedsl.lint.view import GroupView, View
from forgedsl.losses.tree import GROUP_REDUCTIONS, Value, reachable
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.intervals import Interval

finding = rule(__doc__, "D")
DIVISIONS = ("div", "mod")


def check(view: View) -> Findings:
    for loss in view.losses:
        yield from _of_loss(loss)
    for group in view.groups:
        yield from _of_group(group)


def _of_loss(loss: LossView) -> Findings:
    seen: set[Span] = set()
    for node, origin in loss.cached(_divisors):
        spot = loss.spot(origin)
        if spot.span not in seen:
            seen.add(spot.span)
            primal = node < loss.facts.num_primal
            yield _report(loss.facts.gradient.values[node], spot, primal=primal)


def _divisors(loss: LossView) -> tuple[tuple[int, int], ...]:
    """Return (value of the gradient, value of the loss) for each division by a value that may be
    0."""
    facts = loss.facts
    by_hand = loss.cached(hand_written)
    found = []
    for node, value in enumerate(facts.gradient.values):
        operand, origin = _operand(value), facts.origin(node)
        if operand is None or origin is None or (node < facts.num_primal and origin in by_hand):
            continue
        if not _is_safe(value, facts.analysis.guarded(node, operand)):
            found.append((node, origin))
    return tuple(found)


def _of_group(group: GroupView) -> Findings:
    """Check advantages and filters, except divisors over a group, which are R509."""
    tree, analysis = group.located.tree, group.analysis
    for node, value in enumerate(tree.values):
        operand = _operand(value)
        if operand is None or _is_safe(value, analysis.guarded(node, operand)):
            continue
        cone = reachable(tree.values, [operand])
        over_siblings = any(tree.values[n].op in GROUP_REDUCTIONS for n in cone)
        chain = group.located.chains[node]
        if over_siblings and value.op == "div":
            continue
        if chain and not chain[-1].span.file.startswith(STANDARD):
            yield _report(value, Spot(span=chain[-1].span, chain=chain), primal=True)


def _operand(value: Value) -> int | None:
    if value.op in DIVISIONS:
        return value.args[1]
    return value.args[0] if value.op == "log" else None


def _is_safe(value: Value, operand: Interval) -> bool:
    if value.op in DIVISIONS:
        return operand.nonzero
    return operand.lo > 0 or (operand.lo == 0 and operand.nonzero)


def _report(value: Value, spot: Spot, *, primal: bool) -> Diagnostic:
    node = spot.node
    if not primal:
        return finding(
            "the gradient of this divides by 0 where its branch is not taken",
            spot,
            notes=("a branch selects the value; the derivative is formed for all tokens",),
            help="guard the operand: `log(x if x > 0 else 1.0)`, `1 / (x if x > 0 else 1.0)`",
        )
    if value.op == "log":
        argument = node.args[0].value if isinstance(node, ast.Call) and node.args else None
        return finding(
            "the argument of this logarithm may be 0",
            spot,
            help="bound it from below: `log(max(x, 1e-6))`",
            fix=_at_least(argument),
        )
    divisor = node.right if isinstance(node, ast.Binary) else None
    where = spot if divisor is None else Spot(span=divisor.span, also=spot.also)
    return finding(
        "this divisor may be 0",
        where,
        help="bound it from below: `max(x, 1e-6)`",
        fix=_at_least(divisor),
    )


def _at_least(operand: ast.Expr | None) -> Fix | None:
    if operand is None:
        return None
    span = operand.span
    start, end = Span(span.file, span.start, span.start), Span(span.file, span.end, span.end)
    edits = (Edit(text="max(", span=start), Edit(text=", 1e-6)", span=end))
    return Fix(message="bound it from below by 1e-6", edits=edits, safe=False)
