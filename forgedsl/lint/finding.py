"""Making the diagnostics of a rule: `finding = rule(__doc__, "D")`.

Code and name stand once, in the first line of the rule's page, its docstring. The level is E for an
error, D for an error that a comment with a reason suppresses, W for a warning, I for information.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.lint.losses import Spot
from forgedsl.records import dataclass
from forgedsl.source import Span

Findings = Iterator[Diagnostic]
"""what a rule yields"""
SEVERITY = {
    "E": Severity.ERROR, "D": Severity.ERROR, "W": Severity.WARNING, "I": Severity.INFO,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Code, name and level of a rule; called with a message and a place it makes a diagnostic."""

    code: str
    name: str
    level: str
    pedantic: bool = False
    """off unless selected"""
    everywhere: bool = False
    """reported only if every view of the file shows it"""

    def __call__(self, message: str, where: Span | Spot, **more: Any) -> Diagnostic:
        spot = where if isinstance(where, Spot) else Spot(span=where)
        more["related"] = (*more.get("related", ()), *spot.related)
        more["also"] = (*more.get("also", ()), *spot.vouchers(self.code))
        return Diagnostic(
            code=self.code,
            name=self.name,
            severity=SEVERITY[self.level],
            message=message,
            span=spot.span,
            **more,
        )


def rule(page: str | None, level: str, **more: bool) -> Finding:
    """The rule whose page begins with its code and name: `L405 unbounded-exp: ...`."""
    code, name = (page or "").partition(":")[0].split()
    return Finding(code, name, level, **more)
