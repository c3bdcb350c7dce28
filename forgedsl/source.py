"""Source text and positions in it.

A `SourceFile` holds the text of one .forge file; a `Span` is a half-open range of character
offsets in it. Lines and columns (1-based, in code points) are computed on demand.
"""

from __future__ import annotations

from bisect import bisect_right

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` (inclusive) to `end` (exclusive) of the file named `file`."""

    file: str
    start: int
    end: int

    def to(self, other: Span) -> Span:
        """Return the smallest span that covers both."""
        return Span(self.file, min(self.start, other.start), max(self.end, other.end))


NO_SPAN = Span("", 0, 0)


class SourceFile:
    """One file: `name` as shown to the user (relative where possible) and its decoded text."""

    __slots__ = ("_line_starts", "name", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._line_starts: tuple[int, ...] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SourceFile):
            return NotImplemented
        return (self.name, self.text) == (other.name, other.text)

    def __hash__(self) -> int:
        return hash((self.name, self.text))

    def __repr__(self) -> str:
        return f"SourceFile(name={self.name!r}, text={self.text!r})"

    @property
    def line_starts(self) -> tuple[int, ...]:
        """Offset of the start of each line. Computed at the first access."""
        if self._line_starts is None:
            starts = [0]
            at = self.text.find("\n")
            while at >= 0:
                starts.append(at + 1)
                at = self.text.find("\n", at + 1)
            self._line_starts = tuple(starts)
        return self._line_starts

    @property
    def num_lines(self) -> int:
        return len(self.line_starts)

    def position(self, offset: int) -> tuple[int, int]:
        """Return (line, column) of a character offset, both 1-based."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return the text of line `number` (1-based) without its line end."""
        start = self.line_starts[number - 1]
        end = self.line_starts[number] if number < self.num_lines else len(self.text)
        return self.text[start:end].rstrip("\r\n")
