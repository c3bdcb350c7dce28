"""Finds inputs that zero the gradient of a row: if the input is 0, so is the gradient.

    gradient (outputs: logprob, entropy, ...)  ->  silencing  ->  fields, such as an advantage

One field at a time is set to 0 (false) in the gradient, which the builder then simplifies: `0 * x`
is 0, `a if false else b` is b. As in `fold`, `0 * x` is 0 even if x is infinite or NaN. A field
that is a divisor does not zero the gradient. Reductions depend on other rows, whose values are
unknown.
"""

from __future__ import annotations

from forgedsl.losses.build import Builder
from forgedsl.losses.tree import ELEMENTWISE, ROW_STATISTICS, Field, Tree, Value


def silencing(gradient: Tree) -> tuple[Field, ...]:
    """Return the fields that zero the gradient of a row, or of all rows of its sequence or pair,
    where they are 0."""
    given = [field for field in gradient.fields if field.name not in (*ROW_STATISTICS, "mask")]
    return tuple(field for field in given if field.type.axes and _silences(field.name, gradient))


def _silences(name: str, gradient: Tree) -> bool:
    build = Builder()
    known: list[int] = []
    try:
        for number, value in enumerate(gradient.values):
            args = tuple(known[arg] for arg in value.args)
            known.append(_with_zero(build, name, number, value, args))
    except (ArithmeticError, ValueError, TypeError):  # undefined at 0, or not a real number
        return False
    return all(_is_zero(build, known[node]) for _, node in gradient.outputs)


def _with_zero(build: Builder, name: str, number: int, value: Value, args: tuple[int, ...]) -> int:
    """Rebuild `value` with these operands, given that the field `name` is 0."""
    if value.op == "const":
        return build.const(value.attr)
    if value.op == "input" and value.attr == name:
        return build.const(False if value.type.dtype == "bool" else 0.0)
    if value.op in ("expand", "side", "unside"):
        (arg,) = args
        if build.values[arg].op == "const":
            return arg
    elif value.op in ELEMENTWISE:
        if value.op in ("div", "mod") and _is_zero(build, args[1]):
            raise ZeroDivisionError
        return args[1] if value.op == "where" and args[1] == args[2] else build(value.op, *args)
    return build.leaf("unknown", str(number), value.type)


def _is_zero(build: Builder, node: int) -> bool:
    value = build.values[node]
    return value.op == "const" and value.attr == 0.0
