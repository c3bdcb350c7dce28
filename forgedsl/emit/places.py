"""Source places in generated code: `grpo_math.forge:63:3` in a comment of each statement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from forgedsl.source import SourceFile, Span


def place(span: Span, sources: Mapping[str, SourceFile]) -> str:
    """Return `grpo_math.forge:63:3`; "" if the source is not available."""
    if span.file not in sources:
        return ""
    line, column = sources[span.file].position(span.start)
    return f"{PurePath(span.file).name}:{line}:{column}"


def located(line: str, where: str, width: int = 90) -> list[str]:
    """Add a comment with the source place to a statement, after it or above."""
    if where and len(line) + len(where) > width:
        return [f"# {where}", line]
    return [f"{line}  # {where}" if where else line]
