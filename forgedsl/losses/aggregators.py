"""Checks aggregators (`token_mean`, ...), the roots of `minimize` and `report`.

A loss is summed over microbatches and ranks, so it must be linear in its aggregators: a sum of
scalar multiples of them. Everything else is reported.
"""

from __future__ import annotations

from forgedsl.ir import program as ir
from forgedsl.losses import reductions
from forgedsl.losses.build import Typed
from forgedsl.losses.tree import ROW_STATISTICS, VALUE, reachable
from forgedsl.losses.walk import Walk
from forgedsl.schema.reports import wrong_report
from forgedsl.syntax import ast
from forgedsl.types.tensors import ERROR, NO_AXES, TensorType, axes_of

AGGREGATORS = "token_mean, seq_mean, seq_sum, fixed_horizon or pair_mean"
RESULTS = {
    "advantage": (frozenset("G"), "f32", "one number for each completion of a group, [G] f32"),
    "step": (frozenset("B"), "f32", "one number for each sequence, [B] f32"),
    "tokens": (frozenset("BT"), "f32", "one number for each token, [B, T] f32"),
    "filter": (frozenset[str](), "bool", "one bool for the group"),
}
KINDS = ("bool", "str")
"""dtypes of values that are no numbers"""


def check_root(inference: Walk, typed: Typed) -> Typed:
    """Report a `minimize` or `report` whose value is no sum of aggregators."""
    if typed.type.is_error or typed.aggregate:
        return typed
    message = f"this must be the result of an aggregator, but is {typed.type}"
    help_ = f"reduce it with {AGGREGATORS}"
    return inference.error("L416", "aggregator-root", message, typed.span, help=help_)


def report_nested(inference: Walk, typed: Typed) -> None:
    """Report an aggregator inside an expression that is not linear in it."""
    inference.error(
        "L416",
        "aggregator-root",
        "an aggregator must be the outermost function of `minimize` or `report`",
        typed.span,
        help="its value is known only after the whole optimizer step; for a statistic of data use "
        "batch_mean or batch_std, for a mean within each sequence `mean(x, T, mask)`",
    )


def keeps_root(inference: Walk, op: str, args: tuple[Typed, ...]) -> bool:
    """True if `op` of aggregators is still linear in them; reports it if not."""
    aggregates = [arg for arg in args if arg.aggregate]
    if not aggregates or op in ("", "neg"):
        return True
    others = [arg for arg in args if not arg.aggregate]
    if op in ("add", "sub", "where") and not [arg for arg in others if arg.type.dtype != "bool"]:
        return True
    if (op == "mul" or (op == "div" and args[0].aggregate)) and len(aggregates) == 1:
        if not others[0].type.axes:
            return True
        message = f"an aggregator cannot be scaled by {others[0].type}: put the factor inside"
        inference.error("L416", "aggregator-root", message, others[0].span)
        return False
    if op == "div" and len(aggregates) == 2:
        message = (
            "an aggregator inside an aggregator: each microbatch would divide by its own counts"
        )
        help_ = "use one aggregator, for example `token_mean(x, mask)`"
        inference.error("L403", "local-denominator", message, args[1].span, help=help_)
        return False
    if op in ("add", "sub"):
        message = f"an aggregator and {others[0].type} cannot be added"
        help_ = (
            "losses of microbatches are summed, so this term would be added once per "
            "microbatch: move it inside the aggregator"
        )
        inference.error("L416", "aggregator-root", message, others[0].span, help=help_)
        return False
    report_nested(inference, aggregates[-1])
    return False


def check_result(inference: Walk, kind: str, outputs: list[tuple[str, Typed]]) -> None:
    """Check that an advantage returns a number per completion, and a filter a bool per group."""
    function = inference.calls[0]
    article = "an" if kind == "advantage" else "a"
    for _, typed in outputs:
        if typed.type.is_error or kind not in RESULTS:
            continue
        over = "step" if reductions.over_step(function) else kind
        over = "tokens" if reductions.over_tokens(function) else over
        axes, dtype, what = RESULTS[over]
        if not typed.type.axes <= axes:
            message = f"{article} {kind} must be {what}, but this is {typed.type}"
            help_ = "reduce it, for example `count(ok, G) > 0`" if kind == "filter" else ""
            inference.error("T701", "axis", message, typed.span, help=help_)
        elif (typed.type.dtype == "bool") != (dtype == "bool"):
            message = f"{article} {kind} must be {what}, but this is {typed.type}"
            inference.error("T702", "dtype", message, typed.span)
        elif (declared := function.result) is not None and _is_other(declared, axes, dtype):
            given = axes_of(declared) if isinstance(declared, ast.TensorType) else NO_AXES
            code = ("T702", "dtype") if given == axes else ("T701", "axis")
            message = f"{article} {kind} must be {what}, but another type is declared here"
            help_ = f"declare `-> {TensorType(axes, dtype)}`"
            inference.error(*code, message, declared.span, help=help_)


def _is_other(declared: ast.Type, axes: frozenset[str], dtype: str) -> bool:
    """True if a declared result is not the tensor, or the scalar, of these axes and this dtype."""
    if isinstance(declared, ast.TensorType):
        return axes_of(declared) != axes or declared.dtype != dtype
    return bool(axes) or getattr(declared, "name", "") != dtype


def _named(inference: Walk, name: str, node: ast.NamedType, typed: Typed) -> bool:
    """True if a value is a number, a bool or a str as the name of its declared type says; report
    it if not."""
    kind = node.name if node.name in KINDS else "f32"
    dtype = typed.type.dtype
    if typed.type.is_error or dtype == "none" or kind == (dtype if dtype in KINDS else "f32"):
        return not typed.type.is_error
    message = f"`{name}` is declared {node.name}, but its value is {typed.type}"
    inference.error("T702", "dtype", message, node.span)
    return False


def check_declared(inference: Walk, name: str, node: ast.Type | None, typed: Typed) -> bool:
    """True if a value has its declared type, possibly with fewer axes; report it if not."""
    if isinstance(node, ast.NamedType):
        return _named(inference, name, node, typed)
    axes = axes_of(node) if isinstance(node, ast.TensorType) else None
    if axes is None or typed.type.is_error:
        return not typed.type.is_error
    if not frozenset(stands_for(axis, axes) for axis in typed.type.axes) <= axes:
        code = ("T701", "axis")
    elif (typed.type.dtype == "bool") != (node.dtype == "bool"):  # type: ignore[union-attr]
        code = ("T702", "dtype")
    else:
        return True
    declared = TensorType(axes, node.dtype, False)  # type: ignore[union-attr]
    given = TensorType(typed.type.axes, typed.type.dtype, False)
    message = f"`{name}` is declared {declared}, but its value is {given}"
    inference.error(*code, message, node.span)  # type: ignore[union-attr]
    return False


def stands_for(axis: str, declared: frozenset[str]) -> str:
    """Return the declared axis that `axis` matches: B accepts P and (in a function without T) G, T
    accepts T.chosen and T.rejected."""
    if axis in ("P", "G") and "B" in declared and axis not in declared:
        return "B"
    return "T" if axis[0] == "T" else axis


def check_objective(
    inference: Walk, function: ir.Function, outputs: list[tuple[str, Typed]]
) -> None:
    """Check that there is one `minimize` with gradient, that reports have distinct names, and that
    no result is declared."""
    if function.result is not None:
        message = f"loss `{function.name}` has no result type: `minimize` names what it computes"
        inference.error("T702", "dtype", message, function.result.span, help="remove the type")
    losses = [typed for name, typed in outputs if name == "loss"]
    written = [each for each in function.statements if isinstance(each, ast.Minimize)]
    if len(written) != 1:
        message = f"loss `{function.name}` has {len(written) or 'no'} `minimize` statements"
        inference.error("F110", "missing-setting", message, function.span, help="write one")
        return
    reports = [each for each in function.statements if isinstance(each, ast.Report)]
    for number, report in enumerate(reports):
        others = [each.name for each in reports[:number]]
        message = wrong_report(report.name, others, [each.name for each in reports])
        if message:
            inference.error("F102", "duplicate", message, report.name_span, help="rename it")
    if len(losses) != 1:
        return
    loss = losses[0]
    if loss.type is not ERROR and not inference.build.values[loss.value].type.diff:
        message = "nothing in this loss depends on the trained model"
        help_, span = "declare `logprob: diff [B, T] f32` and use it outside `stop(...)`", loss.span
        zero = _given_zero(function)
        if zero is not None and zero.default is not None:
            help_ = (
                f"`{zero.name}` is 0, which makes every product with it 0; set for example "
                f"`{zero.name} = 0.1`"
            )
            span = zero.default.span
        inference.error("L404", "no-gradient", message, span, help=help_)
    elif loss.type is not ERROR and (mixed := _mixed(inference, loss.value)) is not None:
        message = "outputs of the value head and of the policy are combined in one term"
        help_ = "give each its own term: the sum of two aggregators; for a baseline use "
        help_ += "`values` of the flow, which are data"
        inference.error("L419", "mixed-value", message, inference.build.values[mixed].span,
                        help=help_)  # fmt: skip


def _given_zero(function: ir.Function) -> ast.Field | None:
    """Return a parameter of a loss that its caller sets to 0, such as `rl.dpo(beta = 0.0)`."""
    given = (f for f in function.fields if isinstance(f.default, ast.Integer | ast.Number))
    other = (
        f for f in given if f.default is not None and f.default.span.file != function.span.file
    )
    return next((f for f in other if getattr(f.default, "value", None) == 0), None)


def _mixed(inference: Walk, end: int) -> int | None:
    """Return the first value in which the value head and a statistic of the vocabulary are combined
    other than by addition. The gradient of each must not depend on the other."""
    values = inference.build.values
    kinds: dict[int, frozenset[str]] = {}
    for node in reachable(values, [end]):
        value = values[node]
        found = frozenset[str]().union(*(kinds[arg] for arg in value.args))
        if value.op == "input" and value.attr in ROW_STATISTICS:
            found = frozenset((VALUE if value.attr == VALUE else "logprob",))
        kinds[node] = found
        moved = [bool(kinds[arg]) for arg in value.args]
        linear = value.op in ("add", "sub", "neg", "expand", "side") or (
            value.op in ("seq_sum", "total_sum", "mul", "div") and sum(moved) == 1
            and (moved[0] or value.op == "mul")
        )  # fmt: skip
        if len(found) > 1 and not linear:
            return node
    return None
