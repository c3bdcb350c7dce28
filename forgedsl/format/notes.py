"""Attaches the comments of a file to the parts of the tree beside them.

Every comment is taken exactly once: by the item of a block before or after it, by an item of a
bracket, or by the enclosing statement (`rest`), which prints it above itself. The last case is for
places that have no line of their own after formatting, such as between a minus sign and its
operand.
"""

from __future__ import annotations

from bisect import bisect_left

from forgedsl.records import dataclass
from forgedsl.source import SourceFile
from forgedsl.syntax import trivia


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Comments of an item: lines `above` it, and one `behind` it on its line."""

    above: tuple[str, ...] = ()
    behind: str | None = None


class Notes:
    """Comments by offset. Without a source there are none, and every offset is on line 0."""

    def __init__(self, source: SourceFile | None) -> None:
        self.source = source
        self.comments = [] if source is None else list(trivia.comments(source))
        self.starts = [comment.span.start for comment in self.comments]
        self.taken = [False] * len(self.starts)

    def silent(self) -> Notes:
        """Return the same source without its comments."""
        notes = Notes(None)
        notes.source = self.source
        return notes

    def line(self, offset: int) -> int:
        return 0 if self.source is None else self.source.position(offset)[0]

    def any_in(self, start: int, end: int) -> bool:
        """True if there is an untaken comment between two offsets."""
        return any(not self.taken[i] for i in self._range(start, end))

    def take(self, start: int, end: int) -> list[trivia.Comment]:
        """Take the untaken comments between two offsets."""
        found = [i for i in self._range(start, end) if not self.taken[i]]
        for i in found:
            self.taken[i] = True
        return [self.comments[i] for i in found]

    def _range(self, start: int, end: int) -> range:
        return range(bisect_left(self.starts, start), bisect_left(self.starts, end))

    def beside(
        self, spans: list[tuple[int, int]], start: int, end: int
    ) -> tuple[list[Beside], tuple[str, ...]]:
        """Take the comments of items at `spans` inside of a bracket from `start` to `end`: those of
        each item, and those after the last. A comment on the line where an item ends is `behind`
        that item."""
        above: list[tuple[str, ...]] = []
        behind: list[str | None] = []
        bounds = [start, *(e for _, e in spans)]
        for i, (item_start, _) in enumerate([*spans, (end, end)]):
            own: list[str] = []
            for comment in self.take(bounds[i], item_start):
                text = comment_text(comment)
                same_line = self.line(bounds[i]) == self.line(comment.span.start)
                if i and same_line and behind[i - 1] is None:
                    behind[i - 1] = text
                else:
                    own.append(text)
            above.append(tuple(own))
            behind.append(None)
        pairs = zip(above, behind, strict=True)
        items = [Beside(above=a, behind=b) for a, b in pairs]
        return items[:-1], items[-1].above


def comment_text(comment: trivia.Comment) -> str:
    """Return the text of a comment without trailing blanks."""
    return comment.text.rstrip()
