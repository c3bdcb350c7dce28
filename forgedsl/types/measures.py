"""Log-prob measures: which distribution a log-probability belongs to.

    lp<model, temperature, support>

A difference of log-probs is a log-ratio of policies only if temperature and support are equal, so
that only the model differs. A `Form` is a linear combination of log-probs (a coefficient for each
measure), or the exponential of one.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.records import dataclass

FULL = "full vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure. `source` names the field and where its numbers come from."""

    model: str
    temperature: float
    support: str = FULL
    source: str

    def __str__(self) -> str:
        return f"{self.model} @ T={self.temperature}, {self.support}"

    def comparable(self, other: Measure) -> bool:
        """True if a ratio of the two depends only on the models."""
        return (self.temperature, self.support) == (other.temperature, other.support)


@dataclass(frozen=True, slots=True)
class Form:
    """`exp` of a linear combination of log-probs if `is_exp`, else the combination itself."""

    terms: Mapping[Measure, float]
    is_exp: bool = False

    def scaled(self, factor: float) -> Form:
        return Form({m: c * factor for m, c in self.terms.items()}, self.is_exp)

    def plus(self, other: Form) -> Form:
        """Return the sum of two combinations, or the product of two exponentials."""
        names = [*self.terms, *(m for m in other.terms if m not in self.terms)]
        terms = {m: self.terms.get(m, 0.0) + other.terms.get(m, 0.0) for m in names}
        return Form({m: c for m, c in terms.items() if c}, self.is_exp)


def conflict(a: Form, b: Form) -> tuple[Measure, Measure] | None:
    """Return two measures of opposite sign, one from each form, that cannot be compared."""
    for mine, coefficient in a.terms.items():
        for theirs, other in b.terms.items():
            if coefficient * other < 0 and not mine.comparable(theirs):
                return mine, theirs
    return None
