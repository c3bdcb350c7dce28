"""Alignment: padding of names in neighbouring rows, and columns of trailing comments.

- `paddings` aligns the `=` and `{` of neighbouring rows. Of names that differ much in length, the
  most that differ by at most SPREAD characters are aligned, the others stand as they are.
- `place_notes` moves comments at the ends of lines into one column, NOTE_COLUMN, or for a run of
  neighbouring lines behind the longest of them. One that would end beyond NOTE_LIMIT there, or
  stands behind a long line, follows its line after two blanks.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.format.doc import NOTE

SPREAD = 8
NOTE_COLUMN = 49
NOTE_LIMIT = 110
_LONG = 72  # the comment of a longer line is not aligned with others


def paddings(lengths: Sequence[int]) -> int:
    """Return the width to which names are padded; longer names stay unchanged."""
    best = (0, 0)
    for longest in sorted(set(lengths)):
        covered = sum(longest - SPREAD <= length <= longest for length in lengths)
        best = max(best, (covered, -longest))
    return -best[1]


def is_padded(length: int, width: int) -> bool:
    """True if a name of this length is padded to `width`."""
    return width - SPREAD <= length <= width


def place_notes(text: str) -> str:
    """Move comments after NOTE to their column."""
    if NOTE not in text:
        return text
    lines = text.split("\n")
    run: list[int] = []
    for i, line in enumerate([*lines, ""]):
        if NOTE in line:
            run.append(i)
        elif run:
            _place_run(lines, run)
            run = []
    return "\n".join(lines)


def _place_run(lines: list[str], run: list[int]) -> None:
    """Align the comments of neighbouring lines."""
    lengths = [len(lines[i].partition(NOTE)[0]) for i in run]
    column = max([NOTE_COLUMN, *(length + 2 for length in lengths if length <= _LONG)])
    for i, length in zip(run, lengths, strict=True):
        code, _, note = lines[i].partition(NOTE)
        gap = max(column - length, 2) if column + len(note) <= NOTE_LIMIT else 2
        lines[i] = code + " " * gap + note
