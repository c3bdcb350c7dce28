"""Exceptions of ForgeDSL. Mistakes in a .forge file are diagnostics, not exceptions.

ForgeError
|-- SourceError      carries diagnostics across an API boundary (load, compile_loss)
|-- LaunchError      the environment cannot satisfy the plan (exit 4)
|-- RunError         a run failed after launch (exit 5), with the service that failed
|   `-- GuardError   stopped by a guard: NaN, starvation (exit 6)
`-- InternalError    a bug of ours (exit 70)
"""

from __future__ import annotations

from forgedsl.diagnostics import Diagnostic


class ForgeError(Exception):
    """Base of all errors raised by ForgeDSL."""


class SourceError(ForgeError):
    """A .forge text has errors; `diagnostics` holds them."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = diagnostics
        super().__init__(
            "; ".join(
                "; ".join(filter(None, (f"{d.code}: {d.message}", d.help))) for d in diagnostics
            )
        )


class LaunchError(ForgeError):
    """The environment cannot satisfy the plan."""


class RunError(ForgeError):
    """A run failed after launch. `service` is the culprit where there is one, `origin` where it was
    declared (file:line:column)."""

    def __init__(
        self, message: str, *, origin: str = "", remedy: str = "", service: str = ""
    ) -> None:
        self.service = service
        self.origin = origin
        self.remedy = remedy
        super().__init__(message)


class GuardError(RunError):
    """A guard stopped the run (non-finite loss, starvation)."""


class InternalError(ForgeError):
    """A bug in ForgeDSL."""
