"""Formats numbers and times for the terminal and the report."""

from __future__ import annotations

import itertools

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def number(value: float | int | str | None, digits: int = 3) -> str:
    """Format a number with about three significant digits: 0.0132, 0.71, 16,204, 1.2e-07.

    Example:
        number(16204.3) == "16,204"
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    size = abs(value)
    if isinstance(value, float) and size >= 1e15:
        return f"{value:.{digits - 1}e}"
    if isinstance(value, int) or size >= 1000:
        return f"{value:,.0f}"
    if size != 0 and size < 1e-4:
        return f"{value:.{digits - 2}e}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.{digits}f}" if size >= 0.1 or size == 0 else f"{value:.{digits + 1}f}"


def clock(seconds: float | None) -> str:
    """Format seconds as a clock: 0:07, 12:30, 3:05:00."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def duration(seconds: float) -> str:
    """Format seconds as a duration: 7.4 s, 58 s, 12 min 30 s, 3 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def sparkline(values: list[float], width: int) -> str:
    """Draw the values as a row of bars, averaged to `width` bars."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in means)
