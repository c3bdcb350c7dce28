"""Builds trees: operations in, numbered values out. Equal values are shared, constants folded.

The builder derives the type of each operation from its operands and expands operands with fewer
axes. It checks nothing else: rules that a user can break are checked in `infer`.
"""

from __future__ import annotations

from typing import Any

from forgedsl.losses.simplify import Constant, Negative, Same, fold
from forgedsl.losses.tree import COMPARISONS, ELEMENTWISE, REDUCTIONS, Value
from forgedsl.records import dataclass
from forgedsl.source import NO_SPAN, Span
from forgedsl.types.tensors import TensorType, union

BOOLEAN = frozenset((*COMPARISONS, "and", "or", "not", "is_finite", "in_side"))
NO_GRADIENT = frozenset((*BOOLEAN, "stop", "sign", "float"))


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression: its value in the builder, and its type before folding."""

    value: int
    type: TensorType
    span: Span
    aggregate: bool = False
    """True for a sum of aggregators, which is legal only as the root of `minimize` or `report`"""


def constant_dtype(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "f32"
    return "none" if value is None else "str"


class Builder:
    """Appends values. `span` is the source of the operations being built."""

    def __init__(self, values: tuple[Value, ...] = ()) -> None:
        self.values: list[Value] = list(values)
        self.span: Span = NO_SPAN
        self._known: dict[tuple[Any, ...], int] = {
            _key(value): number for number, value in enumerate(values)
        }

    def const(self, value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        return self._add("const", (), value, TensorType(frozenset(), constant_dtype(value)))

    def leaf(self, op: str, attr: str, type_: TensorType) -> int:
        return self._add(op, (), attr, type_)

    def __call__(self, op: str, *args: int) -> int:
        """Append an elementwise operation or a reduction."""
        values = self.values
        if op in ELEMENTWISE and len(args) > 1:
            axes = union([values[arg].type.axes for arg in args])
            if axes:
                args = tuple([self.expand(arg, axes) for arg in args])
        result = fold(op, [values[arg] for arg in args])
        if isinstance(result, Constant):
            return self.const(result.value)
        if isinstance(result, Same):
            return args[result.index]
        if isinstance(result, Negative):
            return self("neg", args[result.index])
        return self._add(op, args, None, self._type(op, args))

    def python(self, attr: str, args: tuple[int, ...]) -> int:
        """Append a number that Python code computes from the inputs."""
        return self._add("python", args, attr, TensorType(frozenset(), "f32", True))

    def expand(self, value: int, axes: frozenset[str]) -> int:
        """Expand `value` to `axes`; scalars need no expansion."""
        type_ = self.values[value].type
        if not type_.axes or type_.axes == axes:
            return value
        return self._add("expand", (value,), None, TensorType(axes, type_.dtype, type_.diff))

    def side(self, value: int, side: str) -> int:
        """Select the tokens of one side of a pair."""
        type_ = self.values[value].type
        axes = (type_.axes - {"T"}) | {f"T.{side}"}
        return self._add("side", (value,), side, TensorType(axes, type_.dtype, type_.diff))

    def unside(self, value: int) -> int:
        """Return the inverse of `side`, for cotangents. Entries of the other side are undefined."""
        type_ = self.values[value].type
        axes = frozenset("T" if axis[0] == "T" else axis for axis in type_.axes)
        return self._add("unside", (value,), None, TensorType(axes, type_.dtype, False))

    def _type(self, op: str, args: tuple[int, ...]) -> TensorType:
        types = [self.values[arg].type for arg in args]
        if op in REDUCTIONS:
            axes = _reduced(op, types[0].axes or types[-1].axes)
            return TensorType(axes, "f32", types[0].diff)
        axes = union([type_.axes for type_ in types])
        operands = types[1:] if op == "where" else types
        dtype = "bool" if op in BOOLEAN else "f32"
        if op in ("where", "stop") and all(type_.dtype == "bool" for type_ in operands):
            dtype = "bool"
        diff = op not in NO_GRADIENT and any(type_.diff for type_ in operands)
        for same in types:
            if same.axes == axes and same.dtype == dtype and same.diff == diff:
                return same
        return TensorType(axes, dtype, diff)

    def _add(self, op: str, args: tuple[int, ...], attr: Any, type_: TensorType) -> int:
        key = (op, args, attr, type(attr), type_.axes, type_.dtype)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.values)
            self.values.append(Value(op=op, args=args, attr=attr, type=type_, span=self.span))
        return number


def _reduced(op: str, axes: frozenset[str]) -> frozenset[str]:
    if op == "total_sum":
        return frozenset()
    gone = {"group": "GB", "sibling": ""}.get(op.partition("_")[0], "T")
    return frozenset(axis for axis in axes if axis[0] not in gone)


def _key(value: Value) -> tuple[Any, ...]:
    return value.op, value.args, value.attr, type(value.attr), value.type.axes, value.type.dtype
