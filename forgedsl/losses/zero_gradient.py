"""Inputs that leave a row without gradient: where one is zero, all is, whatever the log-prob.

    gradient (outputs: logprob, entropy, ...)  ->  silencing  ->  fields, such as an advantage

One field at a time is set to zero (false) in the gradient, and the algebra of the builder does the
rest: `0 * x` is 0, `a if false else b` is b. It holds for numbers, as `fold` does: where x is
infinite or NaN, and the loss with it, `0 * x` is still 0. What divides by the zero is not silent.
Reductions see other rows, of which nothing is known.
"""

from __future__ import annotations

from forgedsl.losses.build import Builder
from forgedsl.losses.tree import ELEMENTWISE, ROW_STATISTICS, Field, Tree, Value


def silencing(gradient: Tree) -> tuple[Field, ...]:
    """The fields each of which silences a row, or all rows of its sequence or pair, where it is
    zero there."""
    given = [field for field in gradient.fields if field.name not in (*ROW_STATISTICS, "mask")]
    return tuple(field for field in given if field.type.axes and _silences(field.name, gradient))


def _silences(name: str, gradient: Tree) -> bool:
    build = Builder()
    known: list[int] = []
    try:
        for number, value in enumerate(gradient.values):
            args = tuple(known[arg] for arg in value.args)
            known.append(_with_zero(build, name, number, value, args))
    except (ArithmeticError, ValueError, TypeError):  # undefined at zero, or no real number
        return False
    return all(_is_zero(build, known[node]) for _, node in gradient.outputs)


def _with_zero(build: Builder, name: str, number: int, value: Value, args: tuple[int, ...]) -> int:
    """`value` of these operands, where the field `name` is zero."""
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
