"""Simplifies values while they are built: constants, neutral and absorbing elements.

`fold` takes an operation and its operands, and returns what it equals: a constant, an operand
(`Same`), a negated operand, or None. It uses real algebra and ignores floating-point corner cases:
`0 * x` is 0, so that `beta = 0.0` removes a KL term and its reference model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forgedsl.losses.tree import Value
from forgedsl.records import dataclass
from forgedsl.types.ops import OPS


@dataclass(frozen=True, slots=True)
class Same:
    """The operation equals its operand number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The operation equals this constant."""

    value: Any


@dataclass(frozen=True, slots=True)
class Negative:
    """The operation equals minus its operand number `index`."""

    index: int


PYTHON: dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    **{op.name: op.python for op in OPS},
    "not": lambda x: not x,
    "stop": lambda x: x,
    "float": float,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "min": min,
    "max": max,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "clamp": lambda x, lo, hi: min(max(x, lo), hi),
    "where": lambda c, a, b: a if c else b,
}


def fold(op: str, args: Sequence[Value]) -> Same | Negative | Constant | None:
    """Return the value of `op(args)`. Raises ArithmeticError or ValueError if it is undefined."""
    if op in PYTHON and all(arg.op == "const" for arg in args):
        return Constant(PYTHON[op](*(arg.attr for arg in args)))
    if op == "where" and args[0].op == "const":
        return Same(1 if args[0].attr else 2)
    if op == "expand" and args[0].op == "const":
        return Same(0)
    if op in ("seq_sum", "group_sum", "total_sum") and args[0].op == "const" and not args[0].attr:
        return Constant(0.0)
    if op == "stop" and not args[0].type.diff:
        return Same(0)
    if len(args) == 2:
        return _fold_binary(op, args[0], args[1])
    return None


def _fold_binary(op: str, left: Value, right: Value) -> Same | Negative | Constant | None:
    def left_is(constant: float | bool) -> bool:
        return left.op == "const" and left.attr == constant

    def right_is(constant: float | bool) -> bool:
        return right.op == "const" and right.attr == constant

    if op == "mul" and (left_is(0.0) or right_is(0.0)):
        return Constant(0.0)
    if op == "div" and left_is(0.0):
        return Constant(0.0)
    if (op, True) in (("add", right_is(0.0)), ("sub", right_is(0.0)), ("mul", right_is(1.0))):
        return Same(0)
    if (op, True) in (("div", right_is(1.0)), ("pow", right_is(1.0))):
        return Same(0)
    if (op, True) in (("add", left_is(0.0)), ("mul", left_is(1.0))):
        return Same(1)
    if op == "mul" and (left_is(-1.0) or right_is(-1.0)):
        return Negative(1 if left_is(-1.0) else 0)
    if op in ("and", "or"):
        for value, other in ((left, Same(1)), (right, Same(0))):
            if value.op == "const":
                return other if bool(value.attr) is (op == "and") else Constant(op == "or")
    return None
