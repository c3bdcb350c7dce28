"""Random values that depend only on a key: the n-th completion of a group has the same length in
every simulation and rehearsal, whatever else happens.

    (seed, what, group, sibling) --uniform--> 0..1 --Dist.at--> tokens, seconds

Text forms: "0.5", "4ms", "lognormal(200, 0.8)" (median and sigma of the logarithm), and
"measured(...)", quantiles of a run, which only a calibration makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import NormalDist

from forgedsl.records import dataclass

MASK = (1 << 64) - 1
LENGTH, PROMPT, REWARD, FAILS, KEEPS, GROUP, SCORE, TURNS, STEP, SPREAD = range(1, 11)
"""first part of a key, so that different quantities have independent values"""
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
NUMBER = re.compile(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(us|ms|s|min|h)?\s*")
_NORMAL = NormalDist()


def uniform(*key: int) -> float:
    """Return a number in (0, 1) that depends only on the key."""
    x = hash(key) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x >> 12) + 0.5) * 2.0**-52


def seconds(text: str) -> float:
    """Parse `4ms`, `0.5` or `2min` to seconds. Raises ValueError if it is no duration."""
    found = NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"`{text}` is not a number or duration, such as 0.5, 4ms or 2min")
    return float(found[1]) * UNITS[found[2] or ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dist:
    """A distribution: a constant (`points` has one entry), a lognormal, or equidistant
    quantiles."""

    points: tuple[float, ...] = ()
    median: float = 0.0
    sigma: float = 0.0
    most: float = math.inf

    def at(self, u: float) -> float:
        """Return the quantile at `u`."""
        if len(self.points) == 1:
            return min(self.points[0], self.most)
        if self.points:
            place = u * (len(self.points) - 1)
            low = int(place)
            return self.points[low] + (place - low) * (self.points[low + 1] - self.points[low])
        return min(self.median * math.exp(self.sigma * _NORMAL.inv_cdf(u)), self.most)

    def blend(self, shared: float, own: float, like: float) -> float:
        """Return a quantile that depends on two random numbers, so that values can be correlated.
        `shared` accounts for the fraction `like` of the variance, `own` for the rest, on the scale
        of a standard normal."""
        if len(self.points) == 1:
            return min(self.points[0], self.most)
        score = math.sqrt(1 - like) * _NORMAL.inv_cdf(own)
        if like:
            score += math.sqrt(like) * _NORMAL.inv_cdf(shared)
        if self.points:
            return self.at(0.5 * math.erfc(-score / math.sqrt(2)))
        return min(self.median * math.exp(self.sigma * score), self.most)

    @property
    def mean(self) -> float:
        return sum(self.at((i + 0.5) / 256) for i in range(256)) / 256

    @property
    def mean_place(self) -> float:
        """Mean place of a token in its completion, if these are the lengths of completions: longer
        ones have more tokens."""
        lengths = [self.at((i + 0.5) / 256) for i in range(256)]
        return sum(n * n for n in lengths) / (2 * max(sum(lengths), 1e-9))

    @property
    def text(self) -> str:
        if len(self.points) == 1:
            return f"{self.points[0]:g}"
        if self.points:
            return f"measured(mean {self.mean:.3g}, most {self.points[-1]:.3g})"
        most = f" up to {self.most:g}" if self.most < math.inf else ""
        return f"lognormal({self.median:g}, {self.sigma:g}){most}"


def constant(value: float) -> Dist:
    return Dist(points=(value,))


def quantiles(values: Sequence[float], count: int = 64) -> Dist:
    """Return measured values as quantiles."""
    ranked = sorted(values)
    return Dist(
        points=tuple(ranked[round(i * (len(ranked) - 1) / count)] for i in range(count + 1))
    )


def dist(text: str, most: float = math.inf) -> Dist:
    """Parse a text form. Raises ValueError."""
    found = re.fullmatch(r"\s*lognormal\(([^,]+),([^,]+)\)\s*", text)
    if found is None:
        return constant(seconds(text))
    return Dist(median=seconds(found[1]), sigma=seconds(found[2]), most=most)
