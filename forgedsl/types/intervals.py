"""Intervals: bounds of numbers that are known at compile time.

    [lo, hi] x finite x nonzero          `finite`: neither infinite nor NaN; `nonzero`: never 0

`TRANSFER` maps an operator of the expression IR to a function that computes the interval of its
result (`ops` has those of functions). Results are sound for real arithmetic, and for f32
exponentials: above `EXP_MAX` they may overflow, below -EXP_MAX they may be 0. Unbounded values
count as finite if their inputs are (log-probs are unbounded below, but finite). Booleans are [0,
1].
"""

from __future__ import annotations

import math
from collections.abc import Callable

from forgedsl.records import dataclass

EXP_MAX = 80.0
"""exp(88.7) is the largest f32; the difference leaves room for a factor"""
INF = math.inf


@dataclass(frozen=True, slots=True)
class Interval:
    """`lo <= x <= hi` unless x is NaN."""

    lo: float = -INF
    hi: float = INF
    finite: bool = True
    nonzero: bool = False

    def __str__(self) -> str:
        return f"[{self.lo:.3g}, {self.hi:.3g}]"

    @property
    def is_point(self) -> bool:
        return self.lo == self.hi

    @property
    def is_bounded(self) -> bool:
        return self.finite and self.lo > -INF and self.hi < INF

    def has(self, x: float) -> bool:
        return self.lo <= x <= self.hi and not (x == 0 and self.nonzero)


def interval(lo: float, hi: float, *, finite: bool = True, nonzero: bool = False) -> Interval:
    """Make an interval; `nonzero` is set if the bounds exclude 0."""
    return Interval(lo, hi, finite, nonzero or lo > 0 or hi < 0)


def point(x: float) -> Interval:
    return interval(x, x, finite=math.isfinite(x))


ANY = Interval()
UNKNOWN = Interval(finite=False)
BOOL = Interval(0.0, 1.0)
TRUE, FALSE = point(1.0), point(0.0)
COUNT = Interval(0.0, INF)
POSITIVE_COUNT = interval(1.0, INF)
LOG_PROB = Interval(-INF, 0.0)


def join(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that contains both."""
    lo, hi = min(a.lo, b.lo), max(a.hi, b.hi)
    return Interval(lo, hi, a.finite and b.finite, a.nonzero and b.nonzero)


def meet(a: Interval, b: Interval) -> Interval:
    """Return the intersection of both; `a` if it would be empty."""
    lo, hi = max(a.lo, b.lo), min(a.hi, b.hi)
    if lo > hi:
        return a
    return interval(lo, hi, finite=a.finite or b.finite, nonzero=a.nonzero or b.nonzero)


# ---- arithmetic


def negative(a: Interval) -> Interval:
    return Interval(-a.hi, -a.lo, a.finite, a.nonzero)


def _plus(x: float, y: float, default: float) -> float:
    return default if math.isnan(x + y) else x + y


def _add(a: Interval, b: Interval) -> Interval:
    lo, hi = _plus(a.lo, b.lo, -INF), _plus(a.hi, b.hi, INF)
    return interval(lo, hi, finite=a.finite and b.finite)


def _sub(a: Interval, b: Interval) -> Interval:
    return _add(a, negative(b))


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def _mul(a: Interval, b: Interval) -> Interval:
    corners = [_times(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    finite, nonzero = a.finite and b.finite, a.nonzero and b.nonzero
    return interval(min(corners), max(corners), finite=finite, nonzero=nonzero)


def square(a: Interval) -> Interval:
    """Return the interval of x * x, with both factors the same x."""
    product = _mul(a, a)
    low = 0.0 if a.lo <= 0 <= a.hi else product.lo
    return interval(low, product.hi, finite=a.finite, nonzero=a.nonzero)


def _div(a: Interval, b: Interval) -> Interval:
    if not b.nonzero:
        return UNKNOWN
    if b.lo < 0 < b.hi:
        return Interval(-INF, INF, a.finite and b.finite, a.nonzero)
    low = 1 / b.hi if b.hi else -INF
    high = 1 / b.lo if b.lo else INF
    return _mul(a, Interval(low, high, b.finite, b.hi < INF and b.lo > -INF))


def _mod(a: Interval, b: Interval) -> Interval:
    if not b.nonzero:
        return UNKNOWN
    return interval(min(b.lo, 0.0), max(b.hi, 0.0), finite=a.finite and b.finite)


def _pow(a: Interval, b: Interval) -> Interval:
    if b.is_point and b.lo == 2:
        return square(a)
    if b.is_point and b.lo >= 0 and b.lo == int(b.lo):
        corners = [power(a.lo, b.lo), power(a.hi, b.lo)]
        low = min(corners)
        if b.lo % 2 == 0:
            low = 0.0 if a.lo <= 0 <= a.hi else low
        return interval(low, max(corners), finite=a.finite, nonzero=a.nonzero)
    if a.lo < 0 or (a.lo == 0 and not a.nonzero and b.lo < 0):
        return UNKNOWN
    corners = [power(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return interval(min(corners), max(corners), finite=a.finite and b.finite)


def power(x: float, y: float) -> float:
    try:
        return float(x**y)
    except OverflowError:
        return -INF if x < 0 and y % 2 else INF
    except ZeroDivisionError:
        return INF


# ---- functions of one variable


def exp(x: float) -> float:
    """Return e to the x; infinite if f32 would overflow."""
    return INF if x > 88.7 else math.exp(x)


# ---- choices


def _min(a: Interval, b: Interval) -> Interval:
    nonzero = a.nonzero and b.nonzero
    lo, hi = min(a.lo, b.lo), min(a.hi, b.hi)
    return interval(lo, hi, finite=a.finite and b.finite, nonzero=nonzero)


def _max(a: Interval, b: Interval) -> Interval:
    return negative(_min(negative(a), negative(b)))


def _clamp(x: Interval, low: Interval, high: Interval) -> Interval:
    return _min(_max(x, low), high)


def _where(test: Interval, then: Interval, otherwise: Interval) -> Interval:
    if test.is_point:
        return then if test.lo else otherwise
    return join(then, otherwise)


def _less(strict: bool) -> Callable[[Interval, Interval], Interval]:
    def compare(a: Interval, b: Interval) -> Interval:
        if not (a.finite and b.finite):
            return BOOL
        if a.hi < b.lo or (not strict and a.hi <= b.lo):
            return TRUE
        if a.lo > b.hi or (strict and a.lo >= b.hi):
            return FALSE
        return BOOL

    return compare


def _eq(a: Interval, b: Interval) -> Interval:
    if not (a.finite and b.finite):
        return BOOL
    if a.is_point and a == b:
        return TRUE
    return FALSE if a.hi < b.lo or b.hi < a.lo else BOOL


def _not(a: Interval) -> Interval:
    return Interval(1.0 - a.hi, 1.0 - a.lo, nonzero=a.hi == 0)


def _sum(a: Interval) -> Interval:
    """Return the interval of a sum of any number of terms, possibly none."""
    low = 0.0 if a.lo >= 0 else -INF
    return Interval(low, 0.0 if a.hi <= 0 else INF, a.finite)


def _same(a: Interval) -> Interval:
    return a


TRANSFER: dict[str, Callable[..., Interval]] = {
    "neg": negative, "not": _not, "stop": _same, "float": _same,
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "mod": _mod, "pow": _pow,
    "min": _min, "max": _max, "and": _min, "or": _max,
    "lt": _less(strict=True), "le": _less(strict=False),
    "gt": lambda a, b: _less(strict=True)(b, a), "ge": lambda a, b: _less(strict=False)(b, a),
    "eq": _eq, "ne": lambda a, b: _not(_eq(a, b)),
    "clamp": _clamp, "clip": _clamp, "where": _where,
    "expand": _same, "side": _same, "unside": _same,
    "seq_sum": lambda a, *mask: _sum(a), "total_sum": lambda a, *mask: _sum(a),
    "seq_max": lambda a, *mask: Interval(-INF, INF, finite=False),
    "seq_min": lambda a, *mask: Interval(-INF, INF, finite=False),
    "seq_count": lambda mask: COUNT,
    "next": lambda a, mask: Interval(min(a.lo, 0.0), max(a.hi, 0.0), a.finite),
    "scan_back": lambda a, decay, mask: Interval(-INF, INF, a.finite),
    "group_max": _same, "group_min": _same, "sibling_max": _same, "sibling_min": _same,
}  # fmt: skip
