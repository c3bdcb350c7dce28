"""Findings as one text without colour, and as an exception."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.errors import PipelineError
from forgedsl.report import full
from forgedsl.report.style import PLAIN
from forgedsl.source import SourceFile


def render_diagnostics(diagnostics: Sequence[Diagnostic], sources: Mapping[str, SourceFile]) -> str:
    """Diagnostics as `forgec lint` shows them, without colour."""
    return full.render(diagnostics, sources, PLAIN)


def error_of(found: Sequence[Diagnostic], sources: Mapping[str, SourceFile]) -> PipelineError:
    """The exception for findings with errors: errors and warnings, as `forgec run` shows them."""
    told = [each for each in found if each.severity is not Severity.INFO]
    return PipelineError("\n" + render_diagnostics(told, sources), tuple(found), sources)
