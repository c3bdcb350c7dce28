"""Draws some seconds of a run on a time axis: which services worked at the same time.

    spans of sample, score, logprobs, step, sync, eval --window--> lanes --> SVG

There are too many completions for bars: their lane shows how many were being sampled.
"""

from __future__ import annotations

from bisect import bisect
from html import escape

from forgedsl.records import dataclass
from forgedsl.runs.charts import ticks
from forgedsl.runs.data import RunData, Span
from forgedsl.runs.text import duration, number

STEPS_SHOWN = 12
WIDTH, LEFT, LANE, TALL = 1080, 92, 26, 64
BUCKETS = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The drawing, its first and last step, and its length in seconds."""

    svg: str
    first_step: int
    last_step: int
    seconds: float


def window(data: RunData) -> tuple[float, float, list[Span]] | None:
    """Return the time of STEPS_SHOWN steps in the middle of the run, or of its longest session."""
    parts: dict[int, list[Span]] = {}
    for step in data.spans["step"]:
        parts.setdefault(bisect(data.starts, step.start), []).append(step)
    steps = max(parts.values(), key=len, default=[])
    if len(steps) < 2:
        return None
    count = min(STEPS_SHOWN, len(steps))
    first = (len(steps) - count) // 2
    shown = steps[first : first + count]
    return shown[0].start - (shown[1].start - shown[0].start) * 0.5, shown[-1].end, shown


def in_flight(spans: tuple[Span, ...], begin: float, end: float) -> list[float]:
    """Return the average number of open spans in each of BUCKETS equal pieces of the window."""
    width = (end - begin) / BUCKETS
    counts = [0.0] * BUCKETS
    for span in spans:
        a, b = max(span.start, begin), min(span.end, end)
        if b <= a:
            continue
        first, last = int((a - begin) / width), min(int((b - begin) / width), BUCKETS - 1)
        for i in range(first, last + 1):
            left = begin + i * width
            counts[i] += max(0.0, min(b, left + width) - max(a, left)) / width
    return counts


class Canvas:
    """Draws lanes from top to bottom."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self.y = 8.0
        self.parts: list[str] = []

    def x(self, time: float) -> float:
        share = (time - self.begin) / (self.end - self.begin)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - 8)

    def label(self, text: str, height: float) -> None:
        self.parts.append(
            f'<text class="lane" x="0" y="{self.y + height / 2 + 4:.0f}">{escape(text)}</text>'
            f'<path class="grid" d="M{LEFT} {self.y + height:.0f}H{WIDTH - 8}"/>'
        )

    def area(self, text: str, counts: list[float], color: str) -> None:
        """Draw a lane that shows a number over time."""
        self.label(text, TALL)
        top, base = max(counts), self.y + TALL
        step = (WIDTH - LEFT - 8) / len(counts)
        points = "".join(
            f"L{LEFT + (i + 0.5) * step:.1f} {base - count / top * (TALL - 12):.1f}"
            for i, count in enumerate(counts)
        )
        self.parts.append(
            f'<path class="area {color}" d="M{LEFT} {base:.1f}{points}V{base:.1f}Z"/>'
            f'<text class="lane dim" x="0" y="{self.y + TALL / 2 + 20:.0f}">'
            f"up to {number(round(top))}</text>"
        )
        self.y += TALL + 8

    def bars(self, text: str, spans: list[Span], color: str, *, named: bool = False) -> None:
        """Draw a lane with a bar for each span."""
        self.label(text, LANE)
        for span in spans:
            a, b = self.x(span.start), self.x(span.end)
            title = f"{span.kind} {span.fields.get('step', span.fields.get('version', ''))}"
            self.parts.append(
                f'<rect class="{color}" x="{a:.1f}" y="{self.y + 4:.0f}" rx="2" '
                f'width="{max(b - a, 1.5):.1f}" height="{LANE - 8}"><title>{title.strip()}: '
                f"{duration(span.end - span.start)}</title></rect>"
            )
            if named and b - a > 26:
                self.parts.append(
                    f'<text class="in mid" x="{(a + b) / 2:.1f}" y="{self.y + LANE / 2 + 4:.0f}">'
                    f"{span.fields['step']}</text>"
                )
        self.y += LANE + 8

    def axis(self) -> None:
        """Draw the time marks, in the background."""
        marks = []
        for value in ticks(0, self.end - self.begin, 8):
            x = self.x(self.begin + value)
            marks.append(
                f'<path class="grid" d="M{x:.1f} 4V{self.y:.0f}"/>'
                f'<text class="ax mid" x="{x:.1f}" y="{self.y + 14:.0f}">{value:g} s</text>'
            )
        self.parts = marks + self.parts

    def svg(self) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.y + 20:.0f}" role="img" '
            f'aria-label="timeline of spans">{"".join(self.parts)}</svg>'
        )


def timeline(data: RunData) -> Timeline | None:
    """Draw the middle of the run; None if it has fewer than two steps."""
    found = window(data)
    if found is None:
        return None
    begin, end, shown = found
    canvas = Canvas(begin, end)
    for kind, text, color in (("sample", "sampling", "c1"), ("score", "scoring", "c4")):
        counts = in_flight(data.spans[kind], begin, end)
        if max(counts) > 0:
            canvas.area(text, counts, color)
    canvas.bars("step", shown, "c2", named=True)
    for kind, color in (("sync", "c3"), ("logprobs", "c5"), ("eval", "c6")):
        spans = [s for s in data.spans[kind] if s.end > begin and s.start < end]
        if spans:
            canvas.bars(kind, spans, color)
    canvas.axis()
    return Timeline(
        svg=canvas.svg(),
        first_step=shown[0].fields["step"],
        last_step=shown[-1].fields["step"],
        seconds=end - begin,
    )
