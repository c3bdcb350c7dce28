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
NUMERIC = ELEMENTWISE - {*COMPARISONS, "and", "or", "not", "where", "is_finite"}


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
        self._known: dict[str, list[Dual]] = {}
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
        known = self._known.setdefault(side, [])
        for number in range(len(known), node + 1):  # evaluated in order, to avoid deep recursion
            found = self._eval(self.values[number], side, known)
            if self._bypass is not None and self._bypass[0] == number:
                found = Dual(found.value, known[self._bypass[1]].slope)
            known.append(found)
        return known[node]

    def _eval(self, value: Value, side: str, known: list[Dual]) -> Dual:
        if value.op == "const":
            usable = isinstance(value.attr, int | float)
            return Dual(float(value.attr) if usable else NAN)  # type: ignore[arg-type]
        if value.op == "input":
            name = f"{value.attr}.{side}" if side else str(value.attr)
            ones = value.type.dtype == "bool"
            slope = 1.0 if name == self.wrt else 0.0
            return Dual(self.inputs.get(name, 1.0 if ones else self.default), slope)
        if value.op == "total" and value.attr in self.totals:
            return Dual(self.totals[str(value.attr)])
        if value.op in ("total", "valid", "group_size", "siblings", "in_side"):
            return Dual(2.0 if value.op == "total" and "P" in self._axes() else 1.0)
        if value.op == "side":
            return self(value.args[0], str(value.attr))
        args = [known[arg] for arg in value.args]
        if value.op in REDUCTIONS or value.op in ("expand", "unside", "float"):
            return Dual(1.0) if value.op == "seq_count" else args[0]
        if value.op in ("min", "max") and args[0].value == args[1].value:
            for mine, other in ((0, 1), (1, 0)):
                if self.values[value.args[other]].op == "const":
                    return args[mine]  # at its bound, a one-sided clamp passes the gradient
        return _elementwise(value.op, args)

    def _axes(self) -> frozenset[str]:
        return frozenset[str]().union(*(v.type.axes for v in self.values if v.op == "input"))


def _elementwise(op: str, args: list[Dual]) -> Dual:
    if op in NUMERIC and any(math.isnan(arg.value) for arg in args):
        return Dual(NAN, NAN)  # NaN propagates as in torch; Python's min and max would drop it
    try:
        value = float(PYTHON[op](*[_argument(op, arg) for arg in args]))
        slope = _slope(op, args, value) if any(arg.slope for arg in args) else 0.0
    except (ArithmeticError, ValueError):
        return Dual(NAN, NAN)
    return Dual(value, slope)


def _argument(op: str, arg: Dual) -> float | bool:
    return bool(arg.value) if op in ("not", "and", "or") else arg.value


def _slope(op: str, args: list[Dual], y: float) -> float:
    """Return the derivative of an operation by the chain rule."""
    x, dx = args[0].value, args[0].slope
    if op == "neg":
        return -dx
    if op in BY_NAME:
        derivative = BY_NAME[op].derivative
        return derivative(NUMBERS, x, y, 1.0) * dx if derivative is not None and dx else 0.0
    if op == "where":
        return args[1].slope if x else args[2].slope
    if op == "clamp":
        return dx if args[1].value <= x <= args[2].value else 0.0
    z, dz = (args[1].value, args[1].slope) if len(args) > 1 else (0.0, 0.0)
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
