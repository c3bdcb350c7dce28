"""Symbolic reverse-mode differentiation of a loss with respect to the row statistics, which the
trainer computes per token (`logprob`, `entropy`, ...: `ROW_STATISTICS`).

    Tree (outputs: loss, reports)  ->  differentiate  ->  Tree (outputs: logprob, entropy, ...)

The vocabulary-sized part of every gradient is fixed (formula: forgedsl_runtime.losses.head), so
only the small program above it is differentiated. Ties follow PyTorch: minimum and maximum share
the gradient, clamp passes it at its bounds, |x| and relu have gradient 0 at 0, `where` selects.
With a constant operand, `min(x, 3.0)` is a clamp.

A cotangent is kept with the mask of the reduction it came from, and is undefined where the mask is
false. Before it is summed or returned, it is selected by the mask, not multiplied, so that NaN in a
masked token cannot reach the gradient.
"""

from __future__ import annotations

from collections.abc import Callable

from forgedsl.losses.build import Builder
from forgedsl.losses.infer import compact
from forgedsl.losses.tree import ROW_STATISTICS, Tree, Value, reachable
from forgedsl.records import dataclass
from forgedsl.types.ops import OPS, Derivative
from forgedsl.types.tensors import SIDES, TensorType


@dataclass(frozen=True, slots=True)
class Cotangent:
    """d loss / d value, valid where `mask` is true (everywhere if None)."""

    value: int
    mask: int | None


def differentiate(tree: Tree, by: tuple[str, ...] = ROW_STATISTICS) -> Tree:
    """Return the gradient of `loss` with respect to each row statistic that it depends on."""
    build = Builder(tree.values)
    outputs, names = _sweep(tree, build)
    return _tree(tree, build, [output for output in outputs if output[0] in by], names)


def with_gradient(tree: Tree, by: tuple[str, ...] = ROW_STATISTICS) -> Tree:
    """Return `tree` with its gradient as further outputs `d_logprob`, ...; common values are
    shared."""
    build = Builder(tree.values)
    outputs, names = _sweep(tree, build)
    found = ((f"d_{name}", value) for name, value in outputs if name in by)
    return _tree(tree, build, [*tree.outputs, *found], names)


def _sweep(tree: Tree, build: Builder) -> tuple[list[tuple[str, int]], dict[int, str]]:
    """Run reverse mode: return the gradients by row statistic, and names for new values."""
    loss = tree.output("loss")
    pending: dict[int, list[Cotangent]] = {loss: [Cotangent(build.const(1.0), None)]}
    names: dict[int, str] = {}
    outputs: list[tuple[str, int]] = []
    for node in reversed(reachable(tree.values, [loss])):
        primal = tree.values[node]
        if node not in pending or not primal.type.diff:
            continue
        build.span = primal.span
        cotangent = combine(build, pending.pop(node))
        if primal.op == "input":
            outputs.append((str(primal.attr), selected(build, cotangent)))
            continue
        if primal.name:
            names.setdefault(cotangent.value, f"d_{primal.name}")
        for arg, contribution in adjoints(build, node, cotangent):
            if tree.values[arg].type.diff and not is_zero(build, contribution):
                pending.setdefault(arg, []).append(contribution)
    outputs.sort(key=lambda output: ROW_STATISTICS.index(output[0]))
    return outputs, {node: name for node, name in names.items() if not build.values[node].name}


def _tree(
    tree: Tree, build: Builder, outputs: list[tuple[str, int]], names: dict[int, str]
) -> Tree:
    values, number = compact(build.values, [value for _, value in outputs], names)
    used = {value.attr for value in values if value.op == "input"}
    return Tree(
        name=tree.name,
        kind="gradient",
        fields=tuple(field for field in tree.fields if field.name in used),
        unused=tuple(field.name for field in tree.fields if field.name not in used),
        values=tuple(values),
        outputs=tuple((name, number[value]) for name, value in outputs),
        span=tree.span,
    )


def is_zero(build: Builder, cotangent: Cotangent) -> bool:
    value = build.values[cotangent.value]
    return value.op == "const" and value.attr == 0.0


def selected(build: Builder, cotangent: Cotangent) -> int:
    """Return the cotangent as a plain value: zero outside of its mask."""
    if cotangent.mask is None:
        return cotangent.value
    return build("where", cotangent.mask, cotangent.value, build.const(0.0))


def combine(build: Builder, parts: list[Cotangent]) -> Cotangent:
    """Return the sum of the contributions to a value."""
    by_mask: dict[int | None, int] = {}
    for part in parts:
        known = by_mask.get(part.mask)
        by_mask[part.mask] = part.value if known is None else build("add", known, part.value)
    sums = [Cotangent(value, mask) for mask, value in by_mask.items()]
    total = sums[0]
    for part in sums[1:]:
        both = None
        if total.mask is not None and part.mask is not None:
            both = build("or", total.mask, part.mask)
        total = Cotangent(build("add", selected(build, total), selected(build, part)), both)
    return total


def adjoints(build: Builder, node: int, cotangent: Cotangent) -> list[tuple[int, Cotangent]]:
    """Yield the contributions of `node` to the cotangents of its arguments."""
    primal = build.values[node]
    if primal.op in STRUCTURE:
        return [(primal.args[0], STRUCTURE[primal.op](build, primal, node, cotangent))]
    partials = RULES[primal.op](build, primal.args, node, cotangent.value)
    return [
        (arg, Cotangent(partial, cotangent.mask))
        for arg, partial in zip(primal.args, partials, strict=True)
        if partial is not None
    ]


# ---- reductions and repetitions


def _total_sum(build: Builder, primal: Value, node: int, cotangent: Cotangent) -> Cotangent:
    return Cotangent(selected(build, cotangent), primal.args[1] if len(primal.args) > 1 else None)


def _seq_sum(build: Builder, primal: Value, node: int, cotangent: Cotangent) -> Cotangent:
    mask = primal.args[1]
    value = build.expand(selected(build, cotangent), build.values[mask].type.axes)
    return Cotangent(value, mask)


def _seq_extreme(build: Builder, primal: Value, node: int, cotangent: Cotangent) -> Cotangent:
    """Share the gradient of a maximum or minimum among all tokens that attain it."""
    value, mask = primal.args
    axes = build.values[mask].type.axes
    attains = build("and", build("eq", value, build.expand(node, axes)), mask)
    share = build(
        "div", selected(build, cotangent), build("seq_sum", build("float", attains), mask)
    )
    return Cotangent(build("where", attains, build.expand(share, axes), build.const(0.0)), mask)


def _expand(build: Builder, primal: Value, node: int, cotangent: Cotangent) -> Cotangent:
    assert cotangent.mask is not None, "token cotangents come from masked reductions"
    tokens = build.expand(cotangent.value, primal.type.axes)
    return Cotangent(build("seq_sum", tokens, cotangent.mask), None)


def _side(build: Builder, primal: Value, node: int, cotangent: Cotangent) -> Cotangent:
    assert cotangent.mask is not None, "token cotangents come from masked reductions"
    assert primal.attr in SIDES
    axes = build.values[primal.args[0]].type.axes
    inside = build.leaf("in_side", str(primal.attr), TensorType(axes, "bool"))
    mask = build("and", inside, build.unside(cotangent.mask))
    value = cotangent.value
    return Cotangent(build.unside(value) if build.values[value].type.tokens else value, mask)


STRUCTURE: dict[str, Callable[[Builder, Value, int, Cotangent], Cotangent]] = {
    "total_sum": _total_sum,
    "seq_sum": _seq_sum,
    "seq_max": _seq_extreme,
    "seq_min": _seq_extreme,
    "expand": _expand,
    "side": _side,
}


# ---- elementwise rules: (build, args, result y, cotangent g) -> one partial for each argument

Rule = Callable[[Builder, tuple[int, ...], int, int], tuple[int | None, ...]]


def _min_max(nearer: str, at_bound: str) -> Rule:
    def rule(build: Builder, args: tuple[int, ...], y: int, g: int) -> tuple[int | None, ...]:
        zero = build.const(0.0)

        def one(mine: int, other: int) -> int:
            if build.values[other].op == "const":
                return build("where", build(at_bound, mine, other), g, zero)
            tie = build("where", build("eq", mine, other), build("mul", build.const(0.5), g), zero)
            return build("where", build(nearer, mine, other), g, tie)

        return one(args[0], args[1]), one(args[1], args[0])

    return rule


def _clamp(b: Builder, args: tuple[int, ...], y: int, g: int) -> tuple[int | None, ...]:
    x, low, high = args
    inside = b("and", b("ge", x, low), b("le", x, high))
    return b("where", inside, g, b.const(0.0)), None, None


def _where(b: Builder, args: tuple[int, ...], y: int, g: int) -> tuple[int | None, ...]:
    zero = b.const(0.0)
    return None, b("where", args[0], g, zero), b("where", args[0], zero, g)


def _pow(b: Builder, args: tuple[int, ...], y: int, g: int) -> tuple[int | None, ...]:
    base, exponent = args
    lower = b("pow", base, b("sub", exponent, b.const(1.0)))
    partial = b("mul", g, b("mul", exponent, lower))
    if not b.values[exponent].type.diff:
        return partial, None
    return partial, b("mul", g, b("mul", y, b("log", base)))


def _div(b: Builder, args: tuple[int, ...], y: int, g: int) -> tuple[int | None, ...]:
    share = b("div", g, args[1])
    return share, b("neg", b("mul", share, y)) if b.values[args[1]].type.diff else None


def _unary(derivative: Derivative) -> Rule:
    return lambda b, args, y, g: (derivative(b, args[0], y, g),)


RULES: dict[str, Rule] = {
    "neg": lambda b, args, y, g: (b("neg", g),),
    **{op.name: _unary(op.derivative) for op in OPS if op.derivative is not None},
    "add": lambda b, args, y, g: (g, g),
    "sub": lambda b, args, y, g: (g, b("neg", g)),
    "mul": lambda b, args, y, g: (b("mul", g, args[1]), b("mul", g, args[0])),
    "div": _div,
    "mod": lambda b, args, y, g: (g, None),
    "pow": _pow,
    "min": _min_max("lt", "le"),
    "max": _min_max("gt", "ge"),
    "clamp": _clamp,
    "where": _where,
}
