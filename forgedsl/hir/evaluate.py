"""Constant folding: an expression whose names all have values becomes a Python value.

Durations and sizes keep their dimension in arithmetic (`Seconds`, `Bytes`), so that adding a
duration to a size is an error. Mistakes are reported once and give ERROR.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Protocol

from forgedsl.diagnostics import Label
from forgedsl.hir.context import ERROR, Context
from forgedsl.ir.program import Constructor
from forgedsl.mistakes.other_tools import equivalent
from forgedsl.settings import Auto
from forgedsl.syntax import ast


class Seconds(float):
    """A duration."""


class Bytes(float):
    """A size."""


_DIMENSIONS: dict[str, type[float]] = {
    "ms": Seconds,
    "s": Seconds,
    "min": Seconds,
    "h": Seconds,
    "d": Seconds,
}
_DIMENSIONS |= {"KiB": Bytes, "MiB": Bytes, "GiB": Bytes, "TiB": Bytes}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARISON: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "len": len,
    "clamp": lambda x, lo, hi: min(max(x, lo), hi),
}
MAX_EXPONENT = 1024
MAX_BITS = 4096


class Names(Protocol):
    """Scope in which a constant expression finds the values of its names."""

    def value_of(self, path: ast.Path) -> Any: ...

    def knows(self, name: str) -> bool: ...

    def constants(self) -> tuple[str, ...]: ...


class NamesOfFile(Names, Protocol):
    """Scope of a file or module, which knows where the values of its parameters are written."""

    def origins(self, expr: ast.Expr) -> tuple[Label, ...]: ...


def type_name(value: Any) -> str:
    """Return the type of a folded value, in words."""
    if value is None:
        return "none"
    names = {bool: "a truth value", Seconds: "a duration", Bytes: "a size", int: "an integer"}
    names |= {float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), type(value).__name__.lower())


_UNITS: dict[str, dict[str, float]] = {
    "duration": {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3},
    "bytes": {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10},
}


def show(value: Any, base: str = "") -> str:
    """Write a folded value in .forge syntax; `base` is the base of its type."""
    if value is None:
        return "none"
    if base == "interval" and isinstance(value, float):
        base = "duration"
    if base in _UNITS and value:
        units = _UNITS[base].items()
        unit, size = next(((u, s) for u, s in units if value % s == 0), [*units][-1])
        return f"{value / size:g}{unit}"
    if isinstance(value, Constructor):
        args = ", ".join(f"{k} = {show(v)}" for k, v in value.args.items() if v is not None)
        return f"{value.name}({args})" if args else value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        return f'"{text}"' if base in ("", "str") else value
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def is_auto(value: Any) -> bool:
    """True for `auto`. An expression that contains `auto` is `auto`: only the plan knows its
    value."""
    return isinstance(value, Auto)


def evaluate(expr: ast.Expr, names: Names, ctx: Context) -> Any:
    """Evaluate a constant expression; ERROR after a diagnostic."""
    match expr:
        case ast.Integer() | ast.Number() | ast.Bool():
            return expr.value
        case ast.String():
            return expr.value
        case ast.NoneLiteral():
            return None
        case ast.Quantity():
            return _quantity(expr)
        case ast.Path():
            return names.value_of(expr)
        case ast.Index():
            return _index(expr, names, ctx)
        case ast.List():
            items = [evaluate(item, names, ctx) for item in expr.items]
            return ERROR if ERROR in items else items
        case ast.Unary():
            return _unary(expr, evaluate(expr.operand, names, ctx), ctx)
        case ast.Binary():
            return _binary(expr, names, ctx)
        case ast.Conditional():
            test = evaluate(expr.test, names, ctx)
            if test is ERROR or is_auto(test):
                return test
            return evaluate(expr.then if test else expr.otherwise, names, ctx)
        case ast.Call():
            return _call(expr, names, ctx)
    raise AssertionError(expr)


def _index(expr: ast.Index, names: Names, ctx: Context) -> Any:
    """Evaluate an index into a list."""
    values, key = evaluate(expr.base, names, ctx), evaluate(expr.key, names, ctx)
    if values is ERROR or key is ERROR or is_auto(values):
        return values if key is not ERROR else ERROR
    if not isinstance(values, list) or not isinstance(key, int):
        return ctx.error("F109", f"{type_name(values)} has no indices", expr.span)
    if not -len(values) <= key < len(values):
        return ctx.error("F113", f"there is no [{key}] among {len(values)} entries", expr.span)
    return values[key]


def _quantity(expr: ast.Quantity) -> Any:
    dimension = _DIMENSIONS.get(expr.unit)
    if dimension is not None:
        return dimension(expr.value)
    return int(expr.value) if expr.value == int(expr.value) else expr.value


def _unary(expr: ast.Unary, value: Any, ctx: Context) -> Any:
    if value is ERROR or is_auto(value):
        return value
    if expr.operator == "not":
        if isinstance(value, bool):
            return not value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return value if expr.operator == "+" else type(value)(-value)
    message = f"`{expr.operator}` does not apply to {type_name(value)}"
    return ctx.error("F109", message, expr.span)


def _binary(expr: ast.Binary, names: Names, ctx: Context) -> Any:
    left = evaluate(expr.left, names, ctx)
    if expr.operator in {"and", "or"}:
        return _logic(expr, left, names, ctx)
    right = evaluate(expr.right, names, ctx)
    if left is ERROR or right is ERROR:
        return ERROR
    if is_auto(left) or is_auto(right):
        return Auto()
    if expr.operator in {"==", "!="}:
        return _COMPARISON[expr.operator](left, right)
    same_text = isinstance(left, str) and isinstance(right, str)
    if expr.operator in _COMPARISON and (same_text or _comparable(left, right)):
        return _COMPARISON[expr.operator](left, right)
    if expr.operator == "+" and same_text:
        return left + right
    if expr.operator in _ARITHMETIC and _is_number(left) and _is_number(right):
        return _arithmetic(expr, left, right, ctx)
    return _mismatch(expr, left, right, ctx)


def _logic(expr: ast.Binary, left: Any, names: Names, ctx: Context) -> Any:
    if left is ERROR or is_auto(left):
        return left
    if isinstance(left, bool) and left == (expr.operator == "or"):
        return left
    right = evaluate(expr.right, names, ctx)
    if right is ERROR or is_auto(right):
        return right
    if isinstance(left, bool) and isinstance(right, bool):
        return right
    return _mismatch(expr, left, right, ctx)


def _mismatch(expr: ast.Binary, left: Any, right: Any, ctx: Context) -> Any:
    message = f"`{expr.operator}` between {type_name(left)} and {type_name(right)}"
    return ctx.error("F109", message, expr.span)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dimension(value: Any) -> type | None:
    return type(value) if isinstance(value, Seconds | Bytes) else None


def _comparable(left: Any, right: Any) -> bool:
    return _is_number(left) and _is_number(right) and _dimension(left) == _dimension(right)


def _arithmetic(expr: ast.Binary, left: Any, right: Any, ctx: Context) -> Any:
    """Evaluate arithmetic on numbers, durations and sizes, with their dimensions."""
    sign = expr.operator
    dims = _dimension(left), _dimension(right)
    if sign in "+-%" and dims[0] != dims[1]:
        return _mismatch(expr, left, right, ctx)
    if (sign == "*" and all(dims)) or (sign == "/" and dims[1] and not dims[0]):
        return _mismatch(expr, left, right, ctx)
    if sign in {"/", "%"} and right == 0:
        return ctx.error("F113", "division by zero", expr.span)
    whole = isinstance(left, int) and left.bit_length() * abs(right) > MAX_BITS
    if sign == "**" and (any(dims) or whole or abs(right) > MAX_EXPONENT):
        return ctx.error("F113", "this power is out of range", expr.span)
    try:
        result = _ARITHMETIC[sign](left, right)
    except (OverflowError, ZeroDivisionError):
        return ctx.error("F113", "the result is out of range", expr.span)
    if isinstance(result, complex) or (isinstance(result, float) and not math.isfinite(result)):
        return ctx.error("F113", "the result is not a finite number", expr.span)
    cancels = sign == "/" and dims[0] == dims[1]
    wrapper = None if cancels else dims[0] or dims[1]
    return wrapper(result) if wrapper else result


def _call(expr: ast.Call, names: Names, ctx: Context) -> Any:
    name = expr.function.text
    if name not in FUNCTIONS:
        known = ", ".join(sorted(FUNCTIONS))
        help_text = (
            equivalent(name) or f"settings are constants; they can use the functions {known}"
        )
        span = expr.function.span
        return ctx.unknown("F101", "unknown function", name, span, FUNCTIONS, help_text)
    values = [evaluate(arg.value, names, ctx) for arg in expr.args]
    if ERROR in values:
        return ERROR
    if any(is_auto(value) for value in values):
        return Auto()
    try:
        return FUNCTIONS[name](*values)
    except (TypeError, ValueError, OverflowError) as error:
        return ctx.error("F113", f"{name}: {error}", expr.span)
