"""Formats a text and verifies that its meaning is unchanged."""

from __future__ import annotations

from forgedsl.diagnostics import Reporter
from forgedsl.errors import InternalError
from forgedsl.format import format_source
from forgedsl.format.same import same_meaning
from forgedsl.source import SourceFile
from forgedsl.syntax import parse


def canonical(source: SourceFile, reporter: Reporter) -> str | None:
    """Return the canonical text; None after syntax errors."""
    file = parse(source, reporter)
    if reporter.has_errors:
        return None
    text = format_source(source, file)
    if text == source.text:
        return text
    problems = Reporter()
    again = parse(SourceFile(source.name, text), problems)
    if problems.has_errors or not same_meaning(file, again):
        raise InternalError(f"formatting would change the meaning of {source.name}")
    return text
