"""Lines and columns of a span, for formats that want both ends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.source import SourceFile, Span

Position = tuple[int, int]


def extent(span: Span, sources: Mapping[str, SourceFile]) -> tuple[Position, Position]:
    """(line, column) of the start and of the end, 1-based; the end is exclusive."""
    source = sources.get(span.file)
    if source is None:
        return (1, 1), (1, 1)
    return source.position(span.start), source.position(span.end)


def fingerprint(diagnostic: Diagnostic, sources: Mapping[str, SourceFile]) -> str:
    """Return a fingerprint that survives moved lines: of code, file, message and source text."""
    source = sources.get(diagnostic.span.file)
    text = source.text[diagnostic.span.start : diagnostic.span.end] if source is not None else ""
    parts = (diagnostic.code, diagnostic.span.file, diagnostic.message, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
