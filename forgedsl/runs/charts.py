"""Line charts as inline SVG: a curve, its trend, its scale.

Input: points of a field over steps. Output: `Chart`. Its `svg` needs no script; a script of the
page uses its `points` to show the value under the pointer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape

from forgedsl.records import dataclass, replace
from forgedsl.runs.text import number
from forgedsl.runs.verdict import edges

Point = tuple[float, float]
MAX_POINTS = 400
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 24, 22
SMALL, WIDE, TALL = (520, 190), (1080, 300), (520, 300)
"""(width, height) of a chart in the grid, of the chart across the page, and of that on a phone"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A curve. `spread` is half the height of a band around it; `dots` marks single points."""

    name: str
    points: tuple[Point, ...]
    spread: tuple[float, ...] = ()
    color: str = "c1"
    dots: bool = False
    exact: bool = False
    """True if no trend is drawn, because a moving average would be meaningless"""
    other: str = ""
    """name of the run if it is not the run of the page; drawn dashed"""

    @property
    def label(self) -> str:
        name = self.name.rpartition("/")[2]
        return f"{name}, {self.other}" if self.other else name

    @property
    def style(self) -> str:
        return f"{self.color} other" if self.other else self.color


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart: markup, and data for hovering. `log` is the version with a logarithmic y axis,
    if the values are positive and far apart."""

    title: str
    note: str
    svg: str
    log: str
    hover: dict[str, object]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers within [low, high]."""
    span = high - low
    raw = span / count
    size = 10 ** math.floor(math.log10(raw))
    step = min((size * m for m in (1, 2, 2.5, 5, 10)), key=lambda step: abs(step - raw))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def thin(series: Series) -> Series:
    """Reduce a curve to at most MAX_POINTS points, each the mean of a stretch."""
    count = len(series.points)
    if count <= MAX_POINTS:
        return series
    cuts = [i * count // MAX_POINTS for i in range(MAX_POINTS + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    points = tuple(
        (
            series.points[part][-1][0],
            sum(y for _, y in series.points[part]) / (part.stop - part.start),
        )
        for part in parts
    )
    spread = tuple(sum(series.spread[p]) / (p.stop - p.start) for p in parts if series.spread)
    return replace(series, points=points, spread=spread)


def trend(points: Sequence[Point]) -> list[Point]:
    """Return a centred moving average over about a tenth of the curve."""
    half = max(len(points) // 20, 1)
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    out = []
    for i, (x, _) in enumerate(points):
        first, last = max(i - half, 0), min(i + half + 1, len(points))
        out.append((x, (sums[last] - sums[first]) / (last - first)))
    return out


def bounds(
    series: Sequence[Series], floor: float | None, ceil: float | None
) -> tuple[float, float]:
    """Return the range of the y axis with a margin; `floor` and `ceil` are always inside."""
    lows, highs = [], []
    for one in series:
        half = one.spread or (0.0,) * len(one.points)
        lows += [y - h for (_, y), h in zip(one.points, half, strict=True)]
        highs += [y + h for (_, y), h in zip(one.points, half, strict=True)]
    low, high = min(lows), max(highs)
    low = low if floor is None else min(floor, low)
    high = high if ceil is None else max(ceil, high)
    if high - low < 1e-12:
        pad = abs(high) * 0.1 or 1.0
        return low - pad, high + pad
    pad = (high - low) * 0.05
    return (low if low == floor else low - pad), (high if high == ceil else high + pad)


class Frame:
    """Maps data to pixels. With `log`, `ys` are logarithms to base 10."""

    def __init__(
        self, width: int, height: int, xs: tuple[float, float], ys: tuple[float, float],
        *, log: bool = False,
    ):  # fmt: skip
        self.width, self.height, self.xs, self.ys, self.log = width, height, xs, ys, log

    def x(self, value: float) -> float:
        span = self.xs[1] - self.xs[0] or 1.0
        return LEFT + (value - self.xs[0]) / span * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        span = self.ys[1] - self.ys[0]
        value = math.log10(value) if self.log else value
        return TOP + (self.ys[1] - value) / span * (self.height - TOP - BOTTOM)

    def path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def axes(frame: Frame, unit: str) -> list[str]:
    """Draw horizontal grid lines with labels, some steps on the x axis, and the names of both
    axes."""
    end = frame.width - RIGHT
    parts = [
        f'<text class="unit" x="2" y="10">{escape(unit)}</text>',
        f'<text class="unit" text-anchor="end" x="{end}" y="{frame.height + 6}">step</text>',
    ]
    number_of_ticks = 5 if frame.height > 200 else 4
    for value in log_ticks(*frame.ys) if frame.log else ticks(*frame.ys, number_of_ticks):
        y = frame.y(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{frame.width - RIGHT}"/>')
        parts.append(
            f'<text class="ax" x="{LEFT - 8}" y="{y + 3.5:.1f}">{axis_number(value)}</text>'
        )
    if frame.xs[1] > frame.xs[0]:
        for value in (x for x in ticks(*frame.xs, 6) if x == round(x)):  # steps are integers
            x, y = frame.x(value), frame.height - 6
            parts.append(f'<text class="ax mid" x="{x:.1f}" y="{y}">{axis_number(value)}</text>')
    return parts


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten within 10**low and 10**high, with 2x and 5x of them if they are few."""
    step = max(1, math.ceil((high - low) / 6))
    powers = range(math.floor(low), math.ceil(high) + 1, step)
    parts = (1, 2, 5) if high - low < 2.5 else (1,)
    found = [m * 10.0**power for power in powers for m in parts]
    return [value for value in found if low <= math.log10(value) <= high]


def axis_number(value: float) -> str:
    """Format a number of an axis: 0.25, 12k, 1e-05."""
    if abs(value) >= 1e7:
        return f"{value:.0e}".replace("e+0", "e")
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.6g}"


def ending(series: Series) -> float:
    """Return the final value of a curve: the mean of its last steps, as in the headlines; of dots
    the last."""
    pair = None if series.dots or series.exact else edges(series.points)
    return series.points[-1][1] if pair is None else pair[1]


def draw(series: Series, frame: Frame) -> list[str]:
    """Draw one series."""
    if series.dots or len(series.points) == 1:
        line = f'<path class="line {series.style}" d="{frame.path(series.points)}"/>'
        return [line] + [
            f'<circle class="{series.color}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5"/>'
            for x, y in series.points
        ]
    parts = []
    if series.spread:
        high = [(x, y + s) for (x, y), s in zip(series.points, series.spread, strict=True)]
        low = [(x, y - s) for (x, y), s in zip(series.points, series.spread, strict=True)]
        area = frame.path(high) + "L" + frame.path(low[::-1])[1:] + "Z"
        parts.append(f'<path class="band {series.color}" d="{area}"/>')
    points: Sequence[Point] = series.points
    if len(points) > 40 and not series.exact:
        if not series.other:
            parts.append(f'<path class="raw {series.color}" d="{frame.path(points)}"/>')
        points = trend(points)
    parts.append(f'<path class="line {series.style}" d="{frame.path(points)}"/>')
    return parts


STEEP = 10.0
"""ratio of largest to smallest value from which a logarithmic axis is offered"""


def is_steep(series: Sequence[Series]) -> bool:
    """True if all values are positive, and the largest is many times the smallest."""
    values = [y for one in series for _, y in one.points]
    return min(values) > 0 and max(values) >= STEEP * min(values)


def picture(frame: Frame, series: Sequence[Series], unit: str, label: str) -> str:
    """Return the markup of a chart."""
    marks = [mark for one in series for mark in draw(one, frame)]
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height + 10}" role="img" '
        f'aria-label="{escape(label)}">'
        + "".join(axes(frame, unit) + marks)
        + f'<path class="cursor" d="M0 {TOP}V{frame.height - BOTTOM}"/></svg>'
    )


def chart(
    title: str,
    series: Sequence[Series],
    *,
    note: str = "",
    size: tuple[int, int] = SMALL,
    floor: float | None = None,
    ceil: float | None = None,
    unit: str = "",
) -> Chart:
    """Draw the series into one frame; every series needs at least one point. `unit` is the unit of
    the y axis. The legend has the final value of each curve."""
    width, height = size
    thinned, whole = [thin(one) for one in series], series
    xs = [x for one in thinned for x, _ in one.points]
    ends = min(xs), max(xs)
    frame = Frame(width, height, ends, bounds(thinned, floor, ceil))
    label = f"{title}: " + ", ".join(
        f"{s.label} from {number(s.points[0][1])} to {number(s.points[-1][1])}" for s in thinned
    )
    svg, log = picture(frame, thinned, unit or title, label), ""
    if is_steep(thinned):
        lows = [math.log10(y) for one in thinned for _, y in one.points]
        pad = 0.05 * (max(lows) - min(lows))
        bare = [replace(one, spread=()) for one in thinned]
        frame_log = Frame(width, height, ends, (min(lows) - pad, max(lows) + pad), log=True)
        log = picture(frame_log, bare, unit or title, f"{label}, logarithmic")
    hover = {
        "x0": frame.xs[0], "x1": frame.xs[1], "left": LEFT, "right": width - RIGHT, "width": width,
        "series": [
            {
                "name": s.label, "color": s.style, "last": number(ending(one)),
                "points": [[x, number(y)] for x, y in s.points],
            }
            for s, one in zip(thinned, whole, strict=True)
        ],
    }  # fmt: skip
    return Chart(title=title, note=note, svg=svg, log=log, hover=hover)
