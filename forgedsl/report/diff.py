"""Renders the changes between two jobs, by class.

numerics        the loss curve may change
  trainer.optimizer.lr   1e-06 -> 2e-06         grpo_math.forge:31:38
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forgedsl.lower.diff import Change

MEANING = {
    "numerics": "changes in what is computed; the loss curve may differ",
    "placement": "changes in where and how fast it runs; results may differ only by the order of "
    "sums",
    "observability": "changes in what is measured, saved and reported, and in time limits",
    "cosmetic": "text only",
}
WIDTH = 100
AROUND = 18


def render(changes: Sequence[Change], *, title: str) -> str:
    """The whole report, ending in a newline."""
    if not changes:
        return f"{title}\n  none: the jobs are the same\n"
    blocks = [title]
    for impact, meaning in MEANING.items():
        mine = [change for change in changes if change.impact == impact]
        if mine:
            lines = [f"{impact:<13}  {meaning}", *_lines(mine)]
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _lines(changes: Sequence[Change]) -> list[str]:
    name = min(40, max(len(change.path) for change in changes))
    place = max(len(change.where) for change in changes)
    room = WIDTH - name - place - 6
    lines = []
    for change in changes:
        before, after = shortened(change.before, change.after, room)
        text = after if change.path == "text" else f"{before} -> {after}"
        lines.append(f"  {change.path:<{name}}  {text:<{room}}  {change.where}".rstrip())
    return lines


def shortened(before: str, after: str, room: int) -> tuple[str, str]:
    """Cut two long texts to their difference with some context."""
    if len(before) + len(after) + 4 <= room:
        return before, after
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    each = (room - 4) // 2
    return _cut(before, start, end, each), _cut(after, start, end, each)


def _cut(text: str, start: int, end: int, room: int) -> str:
    """Cut `text` to at most `room` characters around the part from `start` to `end` (counted from
    the end)."""
    first = max(0, start - min(AROUND, room // 4))  # in a narrow column the difference stays
    last = min(len(text), len(text) - end + AROUND)
    head, tail = "..." if first else "", "..." if last < len(text) else ""
    middle = text[first:last]
    if len(head) + len(middle) + len(tail) > room:
        middle, tail = middle[: max(8, room - len(head) - 3)], "..."
    return f"{head}{middle}{tail}"
