"""Makes the diagnostics of a rule: `finding = rule(__doc__, "D")`.

The docstring of a rule is its page in the documentation; the first line has its code and name.
Levels: E is an error, D an error that a comment with a reason can suppress, W a warning, I
information.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.lint.losses import Spot
from forgedsl.records import dataclass
from forgedsl.source import Span

Findings = Iterator[Diagnostic]
"""result of a rule"""
SEVERITY = {
    "E": Severity.ERROR, "D": Severity.ERROR, "W": Severity.WARNING, "I": Severity.INFO,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Code, name and level of a rule. Calling it with a message and a span makes a diagnostic."""

    code: str
    name: str
    level: str
    pedantic: bool = False
    """True if the rule is off unless selected"""
    everywhere: bool = False
    """True if a finding is reported only if it occurs without a profile and under each profile"""

    def __call__(self, message: str, where: Span | Spot, **more: Any) -> Diagnostic:
        spot = where if isinstance(where, Spot) else Spot(span=where)
        more["related"] = (*more.get("related", ()), *spot.related)
        more["also"] = (*more.get("also", ()), *spot.suppressible_at(self.code))
        return Diagnostic(
            code=self.code,
            name=self.name,
            severity=SEVERITY[self.level],
            message=message,
            span=spot.span,
            **more,
        )


def rule(page: str | None, level: str, **more: bool) -> Finding:
    """Make the Finding of a rule from its page, which begins with code and name:
    `L405 unbounded-exp: ...`."""
    code, name = (page or "").partition(":")[0].split()
    return Finding(code, name, level, **more)
