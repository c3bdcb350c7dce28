"""Infers calls: elementwise built-ins, and functions of the file or a library, which are inlined.

Reductions and aggregators are in `reductions`. docs/reference/expressions.md explains all of them.
"""

from __future__ import annotations

from forgedsl.ir import program as ir
from forgedsl.losses import aggregators, fields, reductions, scans
from forgedsl.losses.build import Typed
from forgedsl.losses.walk import Walk, arguments
from forgedsl.schema.builtins import SCANS
from forgedsl.syntax import ast
from forgedsl.types.ops import BY_NAME

NUMBERS = ("f32", "i64", "bf16")
ELEMENTWISE = {
    **{name: (name, ("x",)) for name in (*BY_NAME, "stop")},
    "min": ("min", ("a", "b")),
    "max": ("max", ("a", "b")),
    "clamp": ("clamp", ("x", "lo", "hi")),
    "clip": ("clamp", ("x", "lo", "hi")),
}
NAMES = frozenset((
    *ELEMENTWISE, *reductions.REDUCERS, *reductions.AGGREGATORS, *reductions.BATCH, *SCANS,
))  # fmt: skip
MAX_DEPTH = 32


def call(inference: Walk, node: ast.Call) -> Typed:
    """Infer a call."""
    name = node.function.text
    if name in reductions.AGGREGATORS:
        return reductions.aggregate(inference, node)
    if name in reductions.BATCH:
        return reductions.batch_statistic(inference, node)
    if name in reductions.REDUCERS and (name not in ("min", "max") or _has_axis(inference, node)):
        return reductions.reduce(inference, node)
    if name in SCANS:
        return scans.scan(inference, node)
    if name in ELEMENTWISE:
        return _elementwise(inference, node)
    found = inference.scope.lookup(node.function.parts)
    if isinstance(found, ir.Function) and found.kind != "loss":
        return inline(inference, found, node)
    if isinstance(found, ir.PythonFunction):
        message = f"`{name}` is a Python function; tensor math must be in the language"
        return inference.error("T702", "dtype", message, node.function.span)
    if found is not None:
        kind = found.kind if isinstance(found, ir.Decl | ir.Function) else "value"
        message = f"`{name}` is a {kind} and cannot be called here"
        return inference.error("T702", "dtype", message, node.function.span)
    if name in inference.locals:
        message = f"`{name}` is {inference.locals[name].type}, not a function"
        return inference.error("T702", "dtype", message, node.function.span)
    known = [*NAMES, *callable_names(inference.scope)]
    return inference.unknown("F101", "undefined function", name, node.function.span, known)


def callable_names(scope: ir.Scope, prefix: str = "") -> list[str]:
    """Return the names of the functions of a scope and of the modules it imports."""
    names = []
    for name, found in scope.names.items():
        if isinstance(found, ir.Function):
            names.append(prefix + name)
        elif isinstance(found, ir.Scope):
            names.extend(callable_names(found, f"{prefix}{name}."))
    return names


def _has_axis(inference: Walk, node: ast.Call) -> bool:
    """True if a call is a reduction: `min(x, G)`, not the elementwise `min(a, b)`."""
    return any(
        arg.name == "axis" or reductions.axis_name(inference, arg.value) is not None
        for arg in node.args[1:]
    )


def _elementwise(inference: Walk, node: ast.Call) -> Typed:
    op, params = ELEMENTWISE[node.function.text]
    bound = arguments(inference, node, params)
    if bound is None:
        return inference.broken(node.span)
    args = inference.operands([bound[name] for name in params])
    if op == "clamp":
        for bound_arg in args[1:]:
            if bound_arg.type.diff:
                return inference.error(
                    "T702",
                    "dtype",
                    "the bounds of clamp cannot carry gradient",
                    bound_arg.span,
                    help="use min and max, or stop(...)",
                )
        low, high = (inference.build.values[a.value] for a in args[1:])
        bounds = [v.attr for v in (low, high) if v.op == "const"]
        numbers = [bound for bound in bounds if isinstance(bound, int | float)]
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            message = f"the lower bound {numbers[0]:g} is not below the upper bound {numbers[1]:g}"
            help_ = f"the lower bound comes first: `{node.function.text}(x, lo, hi)`"
            return inference.error("F113", "bad-value", message, node.span, help=help_)
        if inference.build.values[args[0].value].op == "const":
            least = inference.apply("max", (args[0], args[1]), NUMBERS, node.span)
            return inference.apply("min", (least, args[2]), NUMBERS, node.span)
    dtypes = (*NUMBERS, "bool") if op == "stop" else NUMBERS
    return inference.apply(op, tuple(args), dtypes, node.span)


def inline(inference: Walk, function: ir.Function, node: ast.Call) -> Typed:
    """Inline the body of `function`, with its fields bound to the arguments."""
    if function in inference.calls or len(inference.calls) > MAX_DEPTH:
        chain = " -> ".join(f.name for f in (*inference.calls, function))
        message = f"`{function.name}` calls itself: {chain}"
        return inference.error("F105", "data-cycle", message, node.span)
    required = tuple(f.name for f in function.fields if f.default is None)
    optional = tuple(f.name for f in function.fields if f.default is not None)
    bound = arguments(inference, node, required, optional)
    if bound is None:
        return inference.broken(node.span)
    given = dict(zip(bound, inference.operands(list(bound.values())), strict=True))
    outer = inference.scope, inference.locals
    inference.scope, inference.locals = function.scope, {}
    inference.calls.append(function)
    for field in function.fields:
        if field.name not in given and field.default is not None:
            given[field.name] = inference.expr(field.default)
    results = []
    fits = [
        _fits(inference, field, given[field.name], node, function.kind) for field in function.fields
    ]
    if all(fits):
        inference.locals = given
        results = inference.statements(function)
    inference.calls.pop()
    inference.scope, inference.locals = outer
    if not results or not aggregators.check_declared(
        inference, function.name, function.result, results[-1][1]
    ):
        return inference.broken(node.span)
    return results[-1][1]


def _fits(
    inference: Walk, field: ast.Field, given: Typed, node: ast.Call, function_kind: str
) -> bool:
    """True if an argument has the declared axes (or fewer), and is bool if and only if the declared
    dtype is."""
    if given.type.is_error:
        return False
    if not isinstance(field.type, ast.TensorType):
        return True
    declared = fields.tensor_type(inference, field, field.type, "fn")
    if declared is None:
        return False
    axes = given.type.axes
    if function_kind == "fn":
        axes = frozenset(aggregators.stands_for(axis, declared.axes) for axis in axes)
    if not axes <= declared.axes:
        message = f"`{field.name}` of `{node.function.text}` must be {declared}, not {given.type}"
        inference.error("T701", "axis", message, given.span)
        return False
    if (declared.dtype == "bool") != (given.type.dtype == "bool"):
        message = f"`{field.name}` of `{node.function.text}` must be {declared}, not {given.type}"
        inference.error("T702", "dtype", message, given.span)
        return False
    return True
