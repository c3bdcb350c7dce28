"""Diagnostics: messages of the compiler to the user.

A pass reports `Diagnostic`s to a `Reporter` and goes on; renderers in `forgedsl.report` print
them. User mistakes are never exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from forgedsl.records import dataclass, field
from forgedsl.source import Span


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A secondary place that contributes to a diagnostic."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace the text of `span` by `text`."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Edits that remedy a diagnostic; an unsafe fix may change what the program computes."""

    message: str
    edits: tuple[Edit, ...]
    safe: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One mistake: `code` (F101), `name` (undefined), message, place, and remedy.

    `table` is shown in place of the source line. Its rows: a string is shown as it is, a Label with
    its text and line number, a Label without text as its source line. `also` lists other places
    where a comment can suppress this finding, such as the line of a library function in which it
    arose.
    """

    code: str
    name: str
    severity: Severity
    message: str
    span: Span
    label: str = ""
    related: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str = ""
    fix: Fix | None = None
    profiles: tuple[str, ...] = ()
    table: tuple[str | Label, ...] = ()
    also: tuple[tuple[str, Span], ...] = ()


def counted(number: int, thing: str) -> str:
    """Return a count with its noun: `1 row`, `2 rows`, `3 batches`."""
    plural = "es" if thing.endswith(("h", "x", "s")) else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"


def warning(
    code: str, name: str, message: str, span: Span, *, help: str = "",
    related: tuple[Label, ...] = (),
) -> Diagnostic:  # fmt: skip
    """Make a diagnostic at warning level: compilation goes on."""
    return Diagnostic(
        code=code, name=name, severity=Severity.WARNING, message=message, span=span, help=help,
        related=related,
    )  # fmt: skip


def error(code: str, name: str, message: str, span: Span, **more: object) -> Diagnostic:
    """Make a diagnostic at error level."""
    return Diagnostic(
        code=code,
        name=name,
        severity=Severity.ERROR,
        message=message,
        span=span,
        **more,  # type: ignore[arg-type]
    )


@dataclass(slots=True)
class Reporter:
    """Collects diagnostics, dropping exact repeats."""

    _found: dict[Diagnostic, None] = field(default_factory=dict)

    def report(self, diagnostic: Diagnostic) -> None:
        self._found.setdefault(diagnostic)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self._found)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return list(self._found)

    @property
    def has_errors(self) -> bool:
        return any(d.severity is Severity.ERROR for d in self._found)
