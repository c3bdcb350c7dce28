"""Functions of one number in expressions of the language: a row each.

A row has the meaning of the function, its evaluation in Python, derivative, interval, and text in
torch and in Triton. Type rules, gradients, kernels, the reference and the code of rewards read it.
`min`, `max` and `clamp` are not here: their gradients are shared at ties, and their code depends on
which operand is constant.

Triton's interpreter has no libdevice, so expm1, log1p, tanh and similar functions are written out,
accurate in float32 and float64. They run once per row, so their cost is negligible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from forgedsl.records import dataclass, replace
from forgedsl.types import intervals
from forgedsl.types.intervals import BOOL, EXP_MAX, INF, TRUE, Interval, exp, interval


class Build(Protocol):
    """Makes values: nodes of a tree, or numbers to evaluate a derivative at a point."""

    def __call__(self, op: str, *args: Any) -> Any: ...
    def const(self, value: float) -> Any: ...


Derivative = Callable[[Build, Any, Any, Any], Any]
"""(build, x, y = f(x), cotangent of y) -> cotangent of x"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A function. Without a derivative, no gradient flows through it."""

    name: str
    meaning: str
    python: Callable[[Any], Any]
    interval: Callable[[Interval], Interval]
    derivative: Derivative | None = None
    torch: str
    """template of its torch code around the argument `{}`, if it is not a plain call; unary minus
    first"""
    triton: str
    helper: str = ""
    """code of the Triton helper, if `triton` is no function of `tl`"""
    needs: tuple[str, ...] = ()
    """other helpers that `helper` calls"""
    partial: bool = False
    """True if it is undefined for some x, so that a derivative may be unsafe although its loss is
    not"""


def sigmoid(x: float) -> float:
    """The logistic function, without overflow for large negative x."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def softplus(x: float) -> float:
    """log(1 + exp(x)), without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sign(x: float) -> float:
    """-1, 0 or 1."""
    return float((x > 0) - (x < 0))


# ---- intervals


def _exp(a: Interval) -> Interval:
    finite, nonzero = a.finite and a.hi <= EXP_MAX, a.lo > -EXP_MAX
    return Interval(exp(a.lo), exp(a.hi), finite, nonzero)


def _expm1(a: Interval) -> Interval:
    finite = a.finite and a.hi <= EXP_MAX
    high = exp(a.hi) - 1 if a.hi > 1 else math.expm1(a.hi)
    return interval(math.expm1(a.lo) if a.lo < 1 else exp(a.lo) - 1, high, finite=finite)


def _log(a: Interval) -> Interval:
    safe = a.lo > 0 or (a.lo == 0 and a.nonzero)
    low = math.log(a.lo) if a.lo > 0 else -INF
    high = math.log(a.hi) if 0 < a.hi < INF else INF if a.hi > 0 else -INF
    return interval(low, high, finite=a.finite and safe)


def _log1p(a: Interval) -> Interval:
    if a.lo <= -1:
        return replace(_log(intervals.TRANSFER["add"](a, TRUE)), finite=False)
    high = math.log1p(a.hi) if a.hi < INF else INF
    return interval(math.log1p(a.lo), high, finite=a.finite)


def _sqrt(a: Interval) -> Interval:
    low, high = max(a.lo, 0.0), max(a.hi, 0.0)
    finite = a.finite and a.lo >= 0
    return interval(math.sqrt(low), intervals.power(high, 0.5), finite=finite, nonzero=a.nonzero)


def _softplus_of(x: float) -> float:
    return x if x in (INF, -INF) and x > 0 else max(x, 0.0) + math.log1p(exp(-abs(x)))


def _softplus(a: Interval) -> Interval:
    low, high = _softplus_of(a.lo), _softplus_of(a.hi)
    return Interval(low, high, a.finite, a.lo > -EXP_MAX)


def _log_sigmoid(a: Interval) -> Interval:
    return intervals.negative(_softplus(intervals.negative(a)))


def _sigmoid_of(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > -88 else 0.0


def _sigmoid(a: Interval) -> Interval:
    return Interval(_sigmoid_of(a.lo), _sigmoid_of(a.hi), a.finite, a.lo > -EXP_MAX)


def _tanh(a: Interval) -> Interval:
    return interval(math.tanh(a.lo), math.tanh(a.hi), finite=a.finite)


def _abs(a: Interval) -> Interval:
    low = 0.0 if a.lo <= 0 <= a.hi else min(abs(a.lo), abs(a.hi))
    return interval(low, max(abs(a.lo), abs(a.hi)), finite=a.finite, nonzero=a.nonzero)


def _sign(a: Interval) -> Interval:
    return interval(sign(a.lo), sign(a.hi), finite=a.finite, nonzero=a.nonzero)


# ---- the table


def _times(factor: Callable[[Build, Any, Any], Any]) -> Derivative:
    """Cotangent times `factor(build, x, y)`."""
    return lambda b, x, y, g: b("mul", g, factor(b, x, y))


def _one_minus(b: Build, value: Any) -> Any:
    return b("sub", b.const(1.0), value)


OPS: tuple[Op, ...] = (
    Op(
        name="exp", meaning="exponential; rule L405 wants a bound on `x`",
        python=math.exp, interval=_exp, derivative=_times(lambda b, x, y: y),
        torch="torch.exp({})", triton="tl.exp",
    ),
    Op(
        name="expm1", meaning="exp(x) - 1, exact near 0",
        python=math.expm1, interval=_expm1,
        derivative=_times(lambda b, x, y: b("add", y, b.const(1.0))),
        torch="torch.expm1({})", triton="expm1",
        helper='''
def expm1(x):
    """exp(x) - 1, by its series near 0."""
    series = 1.0
    for k in tl.static_range(17, 1, -1):
        series = 1.0 + series * x / k
    return tl.where(tl.abs(x) < 0.5, series * x, tl.exp(x) - 1.0)
''',
    ),
    Op(
        name="log", meaning="natural logarithm; rule L407 wants `x` above 0",
        python=math.log, interval=_log, derivative=lambda b, x, y, g: b("div", g, x),
        torch="torch.log({})", triton="tl.log", partial=True,
    ),
    Op(
        name="log1p", meaning="log(1 + x), exact near 0",
        python=math.log1p, interval=_log1p,
        derivative=lambda b, x, y, g: b("div", g, b("add", x, b.const(1.0))),
        torch="torch.log1p({})", triton="log1p", partial=True,
        helper='''
def log1p(x):
    """log(1 + x), by the series of 2 atanh(x / (2 + x)) near 0."""
    u = x / (2.0 + x)
    square = u * u
    series = 0.0
    for k in tl.static_range(33, 0, -2):
        series = series * square + 1.0 / k
    return tl.where(tl.abs(x) < 0.5, 2.0 * u * series, tl.log(1.0 + x))
''',
    ),
    Op(
        name="sqrt", meaning="square root",
        python=math.sqrt, interval=_sqrt,
        derivative=lambda b, x, y, g: b("div", g, b("mul", b.const(2.0), y)),
        torch="torch.sqrt({})", triton="tl.sqrt", partial=True,
    ),
    Op(
        name="abs", meaning="absolute value",
        python=abs, interval=_abs, derivative=_times(lambda b, x, y: b("sign", x)),
        torch="torch.abs({})", triton="tl.abs",
    ),
    Op(
        name="sign", meaning="-1, 0 or 1",
        python=sign, interval=_sign, torch="torch.sign({})", triton="sign",
        helper='''
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0)).to(x.dtype)
''',
    ),
    Op(
        name="sigmoid", meaning="1 / (1 + exp(-x))",
        python=sigmoid, interval=_sigmoid,
        derivative=_times(lambda b, x, y: b("mul", y, _one_minus(b, y))),
        torch="torch.sigmoid({})", triton="sigmoid",
        helper='''
def sigmoid(x):
    """The logistic function; exp overflows to infinity where it is 0."""
    return 1.0 / (1.0 + tl.exp(-x))
''',
    ),
    Op(
        name="log_sigmoid", meaning="log(sigmoid(x)), without overflow",
        python=lambda x: -softplus(-x), interval=_log_sigmoid,
        derivative=_times(lambda b, x, y: b("sigmoid", b("neg", x))),
        torch="functional.logsigmoid({})", triton="log_sigmoid", needs=("minimum", "log1p"),
        helper='''
def log_sigmoid(x):
    """log(sigmoid(x)) without underflow."""
    return minimum(x, 0.0) - log1p(tl.exp(-tl.abs(x)))
''',
    ),
    Op(
        name="softplus", meaning="log(1 + exp(x)), without overflow",
        python=softplus, interval=_softplus, derivative=_times(lambda b, x, y: b("sigmoid", x)),
        torch="-functional.logsigmoid(-{})", triton="softplus", needs=("maximum", "log1p"),
        helper='''
def softplus(x):
    """log(1 + exp(x)) without overflow."""
    return maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))
''',
    ),
    Op(
        name="tanh", meaning="hyperbolic tangent",
        python=math.tanh, interval=_tanh,
        derivative=_times(lambda b, x, y: _one_minus(b, b("mul", y, y))),
        torch="torch.tanh({})", triton="tanh", needs=("expm1",),
        helper='''
def tanh(x):
    """tanh by expm1, accurate near 0."""
    u = expm1(-2.0 * tl.abs(x))
    return tl.where(x < 0.0, 1.0, -1.0) * u / (2.0 + u)
''',
    ),
    Op(
        name="is_finite", meaning="neither infinite nor NaN",
        python=math.isfinite, interval=lambda a: TRUE if a.finite else BOOL,
        torch="torch.isfinite({})", triton="is_finite",
        helper='''
def is_finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) < float("inf")
''',
    ),
)  # fmt: skip
BY_NAME = {op.name: op for op in OPS}
TRANSFER: dict[str, Callable[..., Interval]] = {
    **intervals.TRANSFER,
    **{op.name: op.interval for op in OPS},
}
"""operation of the expression IR -> function that computes the interval of its result"""
