"""Results of operations on constants; UNKNOWN where they are not known."""

from __future__ import annotations

import ast
from typing import Any

from forgedsl.lint.follow.values import LISTED, UNKNOWN, Value


def folded(op: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operation on constant numbers."""
    both = (left, right)
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in both):
        return UNKNOWN
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult() if abs(left) < 1e9 and abs(right) < 1e9:
            return left * right
        case ast.Div() if right:
            return left / right
    return UNKNOWN


def compared(op: ast.cmpop, left: Value, right: Value) -> Any:
    """Return the result of a comparison where it is known."""
    if isinstance(op, ast.Is | ast.IsNot) and right.const is None and LISTED in left.labels:
        return isinstance(op, ast.IsNot)
    one, other = left.const, right.const
    if one is UNKNOWN or other is UNKNOWN:
        return UNKNOWN
    match op:
        case ast.Eq():
            return one == other
        case ast.NotEq():
            return one != other
        case ast.Is():
            return one is other
        case ast.IsNot():
            return one is not other
    if not all(isinstance(each, int | float) for each in (one, other)):
        return UNKNOWN
    match op:
        case ast.Lt():
            return one < other
        case ast.LtE():
            return one <= other
        case ast.Gt():
            return one > other
        case ast.GtE():
            return one >= other
    return UNKNOWN


_TYPES = ("float", "int", "str")


def converted(name: str, const: Any) -> Any:
    """Return the result of `float`, `int` or `str` on a constant."""
    if const is UNKNOWN or not isinstance(const, str | int | float):
        return UNKNOWN
    try:
        return {"float": float, "int": int, "str": str}[name](const) if name in _TYPES else UNKNOWN
    except (ValueError, OverflowError):
        return UNKNOWN


def bounded(name: str, args: list[Value]) -> Any:
    """Return the result of `min`, `max` and `bool` on constants."""
    constants = [value.const for value in args]
    if name == "bool" and len(args) == 1 and constants[0] is not UNKNOWN:
        return bool(constants[0])
    are_numbers = len(args) > 1 and all(isinstance(each, int | float) for each in constants)
    if name in ("min", "max") and are_numbers:
        return min(constants) if name == "min" else max(constants)
    return UNKNOWN
