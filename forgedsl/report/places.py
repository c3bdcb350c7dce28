"""Lines and columns of both ends of a span."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.source import SourceFile, Span

Position = tuple[int, int]


def extent(span: Span, sources: Mapping[str, SourceFile]) -> tuple[Position, Position]:
    """Return (line, column) of the start and of the exclusive end, both 1-based."""
    source = sources.get(span.file)
    if source is None:
        return (1, 1), (1, 1)
    return source.position(span.start), source.position(span.end)


def fingerprint(diagnostic: Diagnostic, sources: Mapping[str, SourceFile]) -> str:
    """Return a fingerprint of code, file, message and source text. It does not depend on line
    numbers."""
    source = sources.get(diagnostic.span.file)
    text = source.text[diagnostic.span.start : diagnostic.span.end] if source is not None else ""
    parts = (diagnostic.code, diagnostic.span.file, diagnostic.message, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
