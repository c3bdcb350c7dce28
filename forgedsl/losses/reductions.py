"""Infers reductions over a named axis, aggregators, and statistics of the whole step.

    sum(x, T, mask)            inside a sequence, masked because T is ragged
    mean(r, G)                 over the completions of a group (population std and var)
    mean(r, B)                 over all sequences of the step, in an advantage declared over [B]
    token_mean(x, mask)        the roots of a loss; their denominators count the whole step
    batch_mean(x, mask)        a statistic of data over the whole step

Counts of the declared `mask` are the standard totals `num_tokens` and `num_sequences`. Another mask
registers a total of its own, which the caller sums over the step before the loss runs.
"""

from __future__ import annotations

from forgedsl.ir import program as ir
from forgedsl.losses.build import Typed
from forgedsl.losses.tree import ROW_STATISTICS, reachable
from forgedsl.losses.walk import Walk, arguments
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.tensors import AXES, SCALAR, TensorType, axes_of

REDUCERS = ("sum", "mean", "std", "var", "min", "max", "count")
AGGREGATORS = {
    "token_mean": ("x", "mask"),
    "seq_mean": ("x",),
    "seq_sum": ("x", "mask"),
    "fixed_horizon": ("x", "mask", "horizon"),
    "pair_mean": ("x",),
}
BATCH = ("batch_mean", "batch_std")


def axis_name(inference: Walk, node: ast.Expr) -> str | None:
    """Return the axis that a bare name denotes, unless it is a local or a parameter."""
    if isinstance(node, ast.Path) and len(node.parts) == 1 and node.text in AXES:
        known = node.text in inference.locals or inference.scope.lookup(node.parts) is not None
        return None if known else node.text
    return None


def reduce(inference: Walk, node: ast.Call) -> Typed:
    """Infer `sum(x, T, mask)`, `mean(r, G)`, ..."""
    bound = arguments(inference, node, ("x", "axis"), ("mask",))
    if bound is None:
        return inference.broken(node.span)
    axis = axis_name(inference, bound["axis"])
    (x,) = inference.operands([bound["x"]])
    if axis is None:
        name = node.function.text
        help_ = f"write {name}(x, T, mask) or {name}(x, G)"
        if name == "mean" and inference.calls[0].kind == "loss":
            help_ = "`token_mean(x, mask)` is the mean of all tokens of a step; within a sequence, "
            help_ += "write `mean(x, T, mask)`"
        message = "the second argument must be an axis"
        return inference.error("T701", "axis", message, bound["axis"].span, help=help_)
    function = inference.calls[0]
    whole_step = over_step(function)
    if axis == "B" and function.kind in ("advantage", "filter") and not whole_step:
        if not inference.expect(x, ("f32", "i64", "bf16", "bool")):
            return inference.broken(node.span)
        message = f"{function.kind} `{function.name}` sees the completions of a group, [G], not B"
        help_ = "declare its parameters over [B], to get the whole step"
        help_ = help_ if function.kind == "advantage" else f"write {node.function.text}(x, G)"
        return inference.error("T704", "group-batch", message, bound["axis"].span, help=help_)
    if axis == "P" or (axis == "B" and not whole_step):
        message = (
            f"`{node.function.text}` cannot reduce {axis}, because a microbatch has only a "
            "part of the batch"
        )
        help_ = (
            "use an aggregator (token_mean, seq_mean, ...), or batch_mean for a statistic of data"
        )
        return inference.error("L403", "local-denominator", message, node.span, help=help_)
    if not inference.expect(x, ("f32", "i64", "bf16", "bool")):
        return inference.broken(node.span)
    if axis == "T":
        return _over_tokens(inference, node, x, bound.get("mask"))
    if "mask" in bound:
        message = f"`{node.function.text}` over {axis} takes no mask: every entry counts"
        return inference.error("F114", "arity", message, bound["mask"].span)
    if x.type.tokens is not None:
        message = f"`{node.function.text}` over {axis} needs one value for each sequence"
        help_ = f"reduce the tokens first: `{node.function.text}(sum(x, T, mask), {axis})`"
        return inference.error("T701", "axis", message, x.span, help=help_)
    if axis not in x.type.axes and not (whole_step and "B" in x.type.axes):
        message = f"{x.type} has no axis {axis}"
        return inference.error("T704", "group-batch", message, x.span)
    return _over_group(inference, node.function.text, x, axis, node.span)


def over_step(function: ir.Function) -> bool:
    """True for an advantage over B, which is called once per step with all sequences."""
    return function.kind == "advantage" and "B" in field_axes(function)


def field_axes(function: ir.Function) -> set[str]:
    """Return all axes of the parameters of a function."""
    types = [field.type for field in function.fields]
    return {getattr(a, "text", "") for t in types if isinstance(t, ast.TensorType) for a in t.axes}


def over_tokens(function: ir.Function) -> bool:
    """True for an advantage whose declared result has a number per token."""
    result = function.result
    axes = axes_of(result) if isinstance(result, ast.TensorType) else None
    return function.kind == "advantage" and axes == frozenset("BT")


def _over_tokens(inference: Walk, node: ast.Call, x: Typed, mask_node: ast.Expr | None) -> Typed:
    name = node.function.text
    if x.type.tokens is None and not has_tokens(inference, x):
        return inference.broken(node.span)
    if mask_node is None:
        message = f"`{name}` over T needs a mask: sequences have different lengths"
        help_ = f"write {name}(x, T, mask)"
        return inference.error("L401", "reduction-without-mask", message, node.span, help=help_)
    mask = mask_argument(inference, mask_node, x)
    if mask is None:
        return inference.broken(node.span)
    build = inference.build
    build.span = node.span
    value, number = x.value, count_tokens(inference, mask)
    if x.type.dtype == "bool":
        value = build("float", value)
    if name == "count":
        result = build("seq_sum", value, mask.value) if x.type.dtype == "bool" else number
    elif name in ("min", "max", "sum"):
        result = build(f"seq_{name}", value, mask.value)
    else:
        size = build("max", number, build.const(1.0))
        result = build("div", build("seq_sum", value, mask.value), size)
        if name in ("std", "var"):
            centred = build("sub", value, result)
            square = build("mul", centred, centred)
            result = build("div", build("seq_sum", square, mask.value), size)
            result = _safe_sqrt(inference, result) if name == "std" else result
    return _typed(inference, result, x.type.axes - {x.type.tokens}, node.span)


def _safe_sqrt(inference: Walk, variance: int) -> int:
    """Return a square root with gradient 0 at 0, the variance of a sequence of one token."""
    build = inference.build
    positive = build("gt", variance, build.const(0.0))
    root = build("sqrt", build("where", positive, variance, build.const(1.0)))
    return build("where", positive, root, build.const(0.0))


def _over_group(inference: Walk, name: str, x: Typed, axis: str, span: Span) -> Typed:
    """Infer a reduction over G or B. In a function of the whole step, a reduction over G gives each
    sequence the value of its group."""
    build = inference.build
    build.span = span
    value = build("float", x.value) if x.type.dtype == "bool" else x.value
    of, size = "group", build.leaf("group_size", "", SCALAR)
    if axis == "G" and "B" in x.type.axes:
        of, size = "sibling", build.leaf("siblings", "", TensorType(frozenset("B"), "f32"))
    constant = not build.values[value].type.axes
    if name == "count" and x.type.dtype != "bool":
        result = size
    elif name in ("sum", "count"):
        result = build("mul", value, size) if constant else build(f"{of}_sum", value)
    elif name in ("min", "max"):
        result = value if constant else build(f"{of}_{name}", value)
    elif constant:
        result = value if name == "mean" else build.const(0.0)
    else:
        result = build("div", build(f"{of}_sum", value), size)
        if name in ("std", "var"):
            centred = build("sub", value, result)
            result = build("div", build(f"{of}_sum", build("mul", centred, centred)), size)
            result = build("sqrt", result) if name == "std" else result
    return _typed(inference, result, x.type.axes - ({"G"} if of == "sibling" else {axis}), span)


def aggregate(inference: Walk, node: ast.Call) -> Typed:
    """Infer an aggregator: a scalar whose denominator counts the whole optimizer step."""
    name = node.function.text
    optional = ("mask",) if name == "seq_mean" else ()
    bound = arguments(inference, node, AGGREGATORS[name], optional)
    if bound is None:
        return inference.broken(node.span)
    (x,) = inference.operands([bound["x"]])
    if not inference.expect(x, ("f32", "i64", "bf16", "bool")):
        return inference.broken(node.span)
    inference.build.span = node.span
    if x.type.dtype == "bool":
        x = Typed(inference.build("float", x.value), x.type, x.span)
    if name == "pair_mean" or (name == "seq_mean" and "mask" not in bound):
        return _mean_of_sequences(inference, node, x, "P" if name == "pair_mean" else "B")
    mask = mask_argument(inference, bound["mask"], x)
    if mask is None or not has_tokens(inference, x):
        return inference.broken(node.span)
    if _depends_on_policy(inference, mask):
        message = "the mask of an aggregator depends on the trained model"
        help_ = "its count must be known before the step: put the condition into the value, "
        help_ += "`0.0 if dropped else x`"
        return inference.error("L417", "policy-mask", message, mask.span, help=help_)
    return _token_aggregate(inference, node, x, mask, bound)


def _token_aggregate(
    inference: Walk, node: ast.Call, x: Typed, mask: Typed, bound: dict[str, ast.Expr]
) -> Typed:
    build, name = inference.build, node.function.text
    build.span = node.span
    if name == "seq_mean":
        size = build("max", count_tokens(inference, mask), build.const(1.0))
        mean = build("div", build("seq_sum", x.value, mask.value), size)
        value = build("total_sum", mean)
    else:
        value = build("total_sum", x.value, on_side(inference, mask))
    denominator = total(inference, "num_tokens" if name == "token_mean" else "num_sequences", mask)
    if name == "fixed_horizon":
        (horizon,) = inference.operands([bound["horizon"]])
        if not inference.expect(horizon, ("f32", "i64")):
            return inference.broken(node.span)
        if horizon.type.axes:
            message = f"the horizon must be one number, but this is {horizon.type}"
            return inference.error("T701", "axis", message, horizon.span)
        build.span = node.span
        denominator = build("mul", denominator, horizon.value)
    return _typed(inference, build("div", value, denominator), frozenset(), node.span, True)


def _mean_of_sequences(inference: Walk, node: ast.Call, x: Typed, owner: str) -> Typed:
    if x.type.axes != {owner}:
        name = node.function.text
        message = f"`{name}` needs one value for each {owner}, but this is {x.type}"
        help_ = "give it the mask, `seq_mean(x, mask)`" if x.type.tokens and owner == "B" else ""
        if not x.type.axes:
            help_ = (
                "remove one aggregator: the other already divides by the counts of the whole step"
            )
            return inference.error("T701", "axis", message, x.span, help=help_)
        code = ("L401", "reduction-without-mask") if help_ else ("T701", "axis")
        return inference.error(*code, message, x.span, help=help_)
    build = inference.build
    build.span = node.span
    valid = build.leaf("valid", owner, TensorType(frozenset(owner), "bool"))
    count = build.leaf("total", "num_sequences", SCALAR)
    if owner == "P":
        count = build("div", count, build.const(2.0))
    value = build("div", build("total_sum", x.value, valid), count)
    return _typed(inference, value, frozenset(), node.span, True)


def batch_statistic(inference: Walk, node: ast.Call) -> Typed:
    """Infer `batch_mean(x, mask)` and `batch_std`: over all valid tokens of the step; or, if `x`
    has one value per sequence and there is no mask, over all sequences."""
    bound = arguments(inference, node, ("x",), ("mask",))
    if bound is None:
        return inference.broken(node.span)
    (x,) = inference.operands([bound["x"]])
    if not inference.expect(x, ("f32", "i64", "bf16")):
        return inference.broken(node.span)
    if "mask" in bound:
        mask = mask_argument(inference, bound["mask"], x)
    else:
        mask = _sequences(inference, x, node)
    if mask is None:
        return inference.broken(node.span)
    if x.type.diff or _depends_on_policy(inference, x) or _depends_on_policy(inference, mask):
        message = f"`{node.function.text}` needs data, but this depends on the trained model"
        help_ = "its value must be known before the step"
        return inference.error("L417", "policy-mask", message, x.span, help=help_)
    build = inference.build
    build.span = node.span
    tokens = build.expand(x.value, mask.type.axes)
    mean = _batch_mean(inference, tokens, mask)
    if node.function.text == "batch_std":
        square = _batch_mean(inference, build("mul", tokens, tokens), mask)
        variance = build("sub", square, build("mul", mean, mean))
        mean = build("sqrt", build("max", variance, build.const(0.0)))
    return _typed(inference, mean, frozenset(), node.span)


def _sequences(inference: Walk, x: Typed, node: ast.Call) -> Typed | None:
    """Return a mask of all sequences; None after reporting that `x` has a token axis."""
    type_ = TensorType(frozenset("B"), "bool")
    if x.type.axes == {"B"}:
        return Typed(inference.build.leaf("valid", "B", type_), type_, node.span)
    name = node.function.text
    message = f"`{name}` without a mask needs one value for each sequence, but this is {x.type}"
    help_ = f"over tokens: `{name}(x, mask)`" if x.type.tokens else ""
    inference.error("L401", "reduction-without-mask", message, x.span, help=help_)
    return None


def _batch_mean(inference: Walk, tokens: int, mask: Typed) -> int:
    build = inference.build
    value = register(inference, "batch_sum", build("total_sum", tokens, on_side(inference, mask)))
    if build.values[mask.value].op == "valid":
        return build("div", value, build.leaf("total", "num_sequences", SCALAR))
    return build("div", value, total(inference, "num_tokens", mask))


# ---- masks and counts


def mask_argument(inference: Walk, node: ast.Expr, x: Typed) -> Typed | None:
    """Check the mask of a reduction of `x`; None after reporting a mistake."""
    (mask,) = inference.operands([node])
    if not inference.expect(mask, ("bool",)) or not inference.unify((x, mask), node.span):
        return None
    if mask.type.tokens is None or not inference.build.values[mask.value].type.axes:
        message = f"a mask must be [B, T] bool, but this is {mask.type}"
        help_ = "the mask comes from the rollout: `mask: [B, T] bool`"
        inference.error("L401", "reduction-without-mask", message, node.span, help=help_)
        return None
    return mask


def has_tokens(inference: Walk, x: Typed) -> bool:
    """True if `x` has a token axis; reports it if not."""
    if x.type.tokens is not None:
        return True
    message = f"this is {x.type}, which has no axis T"
    help_ = "it is already one value per sequence" if x.type.axes & {"B", "P"} else ""
    help_ = "its axis is G, the completions of a prompt" if x.type.axes == {"G"} else help_
    inference.error("T701", "axis", message, x.span, help=help_)
    return False


def count_tokens(inference: Walk, mask: Typed) -> int:
    """Return the number of valid tokens of each sequence."""
    return inference.build("seq_count", mask.value)


def on_side(inference: Walk, mask: Typed) -> int:
    """Return a mask that is false on the other side of each pair, if it is a mask of one side."""
    build, (_, _, side) = inference.build, (mask.type.tokens or "").partition(".")
    if not side:
        return mask.value
    whole = frozenset("T" if axis[0] == "T" else axis for axis in mask.type.axes)
    inside = build.leaf("in_side", side, TensorType(whole, "bool"))
    return build("and", build.side(inside, side), mask.value)


def total(inference: Walk, name: str, mask: Typed) -> int:
    """Return the count `name` over the whole step, for any mask."""
    build = inference.build
    value = build.values[mask.value]
    if value.op == "input" and value.attr == "mask":
        return build.leaf("total", name, SCALAR)
    if name == "num_tokens":
        counted = build("float", mask.value)
        return register(inference, name, build("total_sum", counted, on_side(inference, mask)))
    nonempty = build("min", count_tokens(inference, mask), build.const(1.0))
    return register(inference, name, build("total_sum", nonempty))


def register(inference: Walk, name: str, value: int) -> int:
    """Register `value`, a sum of data over a microbatch, as a total over the step."""
    for known, other in inference.totals:
        if other == value:
            return inference.build.leaf("total", known, SCALAR)
    label = f"{name}_{len(inference.totals) + 1}"
    inference.totals.append((label, value))
    return inference.build.leaf("total", label, SCALAR)


def _depends_on_policy(inference: Walk, typed: Typed) -> bool:
    values = inference.build.values
    return any(
        values[node].op == "input" and values[node].attr in ROW_STATISTICS
        for node in reachable(values, [typed.value])
    )


def _typed(
    inference: Walk, value: int, axes: frozenset[str], span: Span, aggregate: bool = False
) -> Typed:
    diff = inference.build.values[value].type.diff
    return Typed(value, TensorType(axes, "f32", diff), span, aggregate)
