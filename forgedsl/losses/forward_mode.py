"""Evaluates a tree and its derivative at a point: forward-mode differentiation on numbers.

    Tree, values of its inputs, a row statistic  ->  (value, d value / d statistic) of every node

The point is a sequence (or pair, or group) with one valid token: reductions are the identity and
counts of the step are 1, so the result is the loss of a single token. `totals` gives other sums
over the step. Ties are treated as in `grad`. Inputs of pairs are named by side: `logprob.chosen`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from forgedsl.losses.simplify import PYTHON
from forgedsl.losses.tree import COMPARISONS, ELEMENTWISE, REDUCTIONS, Value
from forgedsl.records import dataclass
from forgedsl.types.ops import BY_NAME

NAN = math.nan
LOGICAL = ("and", "or", "not")
NUMERIC = ELEMENTWISE - {*COMPARISONS, *LOGICAL, "where", "is_finite"}
COUNTED = ("total", "valid", "group_size", "siblings", "in_side")
PASSED = {*REDUCTIONS, "expand", "unside", "float"}
"""operations that are the identity for a single token"""


@dataclass(frozen=True, slots=True)
class Dual:
    """A value and its derivative."""

    value: float
    slope: float = 0.0


class _Numbers:
    """`Build` on numbers: computes derivatives as numbers instead of nodes."""

    def __call__(self, op: str, *args: float) -> float:
        return float(PYTHON[op](*args))

    def const(self, value: float) -> float:
        return value


NUMBERS = _Numbers()


class Point:
    """A tree at a point. `inputs` are by name; missing ones are `default`."""

    def __init__(
        self,
        values: Sequence[Value],
        inputs: Mapping[str, float],
        *,
        wrt: str = "logprob",
        default: float = 0.0,
        totals: Mapping[str, float] | None = None,
    ) -> None:
        self.values = values
        self.inputs = inputs
        self.wrt = wrt
        self.default = default
        self.totals = totals or {}
        self._known: dict[str, tuple[list[float], list[float]]] = {}
        """values and derivatives of the nodes evaluated so far, by side of a pair"""
        self._bypass: tuple[int, int] | None = None

    def bypassing(self, node: int, arg: int) -> Point:
        """Return the point with `node` passing the slope of `arg` straight through."""
        other = Point(
            self.values, self.inputs, wrt=self.wrt, default=self.default, totals=self.totals
        )
        other._bypass = (node, arg)
        return other

    def __call__(self, node: int, side: str = "") -> Dual:
        """Return value and derivative of a node (for a pair, of one side)."""
        values, slopes = self._known.setdefault(side, ([], []))
        for number in range(len(values), node + 1):  # evaluated in order, to avoid deep recursion
            value, slope = self._eval(self.values[number], side, values, slopes)
            if self._bypass is not None and self._bypass[0] == number:
                slope = slopes[self._bypass[1]]
            values.append(value)
            slopes.append(slope)
        return Dual(values[node], slopes[node])

    def _eval(
        self, value: Value, side: str, values: list[float], slopes: list[float]
    ) -> tuple[float, float]:
        op, args = value.op, value.args
        if op == "const":
            usable = isinstance(value.attr, int | float)
            return float(value.attr) if usable else NAN, 0.0  # type: ignore[arg-type]
        if op == "input":
            name = f"{value.attr}.{side}" if side else str(value.attr)
            missing = 1.0 if value.type.dtype == "bool" else self.default
            return self.inputs.get(name, missing), 1.0 if name == self.wrt else 0.0
        if op == "total" and value.attr in self.totals:
            return self.totals[str(value.attr)], 0.0
        if op in COUNTED:
            return 2.0 if op == "total" and "P" in self._axes() else 1.0, 0.0
        if op == "side":
            found = self(args[0], str(value.attr))
            return found.value, found.slope
        if op in PASSED:
            return (1.0, 0.0) if op == "seq_count" else (values[args[0]], slopes[args[0]])
        if op in ("min", "max") and values[args[0]] == values[args[1]]:
            for mine, other in (args, reversed(args)):
                if self.values[other].op == "const":  # at its bound, a one-sided clamp passes
                    return values[mine], slopes[mine]  # the gradient
        return _elementwise(op, [values[arg] for arg in args], [slopes[arg] for arg in args])

    def _axes(self) -> frozenset[str]:
        return frozenset[str]().union(*(v.type.axes for v in self.values if v.op == "input"))


def _elementwise(op: str, xs: list[float], slopes: list[float]) -> tuple[float, float]:
    if op in NUMERIC and any(map(math.isnan, xs)):
        return NAN, NAN  # NaN propagates as in torch; Python's min and max would drop it
    try:
        value = float(PYTHON[op](*(map(bool, xs) if op in LOGICAL else xs)))
        slope = _slope(op, xs, slopes, value) if any(slopes) else 0.0
    except (ArithmeticError, ValueError):
        return NAN, NAN
    return value, slope


def _slope(op: str, xs: list[float], slopes: list[float], y: float) -> float:
    """Return the derivative of an operation by the chain rule."""
    x, dx = xs[0], slopes[0]
    if op == "neg":
        return -dx
    if op in BY_NAME:
        derivative = BY_NAME[op].derivative
        return derivative(NUMBERS, x, y, 1.0) * dx if derivative is not None and dx else 0.0
    if op == "where":
        return slopes[1] if x else slopes[2]
    if op == "clamp":
        return dx if xs[1] <= x <= xs[2] else 0.0
    z, dz = (xs[1], slopes[1]) if len(xs) > 1 else (0.0, 0.0)
    if op in ("min", "max"):
        if x == z:
            return (dx + dz) / 2
        return dx if (x < z) == (op == "min") else dz
    if op not in BINARY:
        return 0.0
    left, right = BINARY[op]
    return (left(x, z, y) * dx if dx else 0.0) + (right(x, z, y) * dz if dz else 0.0)


Partial = Callable[[float, float, float], float]
BINARY: dict[str, tuple[Partial, Partial]] = {
    "add": (lambda x, z, y: 1.0, lambda x, z, y: 1.0),
    "sub": (lambda x, z, y: 1.0, lambda x, z, y: -1.0),
    "mul": (lambda x, z, y: z, lambda x, z, y: x),
    "div": (lambda x, z, y: 1 / z, lambda x, z, y: -y / z),
    "pow": (lambda x, z, y: z * x ** (z - 1), lambda x, z, y: y * math.log(x)),
    "mod": (lambda x, z, y: 1.0, lambda x, z, y: 0.0),
}
