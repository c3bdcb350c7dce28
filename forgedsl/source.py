"""Source text and positions in it.

A `SourceFile` holds the text of one .forge file; a `Span` is a half-open range of character
offsets in it. Lines and columns (1-based, in code points) are computed on demand.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import field

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` (inclusive) to `end` (exclusive) of the file named `file`."""

    file: str
    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The smallest span that covers both."""
        return Span(self.file, min(self.start, other.start), max(self.end, other.end))


NO_SPAN = Span("", 0, 0)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: `name` as shown to the user (relative where possible) and its decoded text."""

    name: str
    text: str
    line_starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = [0]
        starts.extend(i + 1 for i, char in enumerate(self.text) if char == "\n")
        object.__setattr__(self, "line_starts", tuple(starts))

    @property
    def num_lines(self) -> int:
        return len(self.line_starts)

    def position(self, offset: int) -> tuple[int, int]:
        """(line, column) of a character offset, both 1-based."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of line `number` (1-based) without its line end."""
        start = self.line_starts[number - 1]
        end = self.line_starts[number] if number < self.num_lines else len(self.text)
        return self.text[start:end].rstrip("\r\n")
