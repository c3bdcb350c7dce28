"""Numerical helpers of calibrations: non-negative least squares, overlap of intervals.

No numpy: a calibration fits four numbers to some thousand completions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Interval = tuple[float, float]


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return coefficients >= 0 with the least squared error. Columns with negative ones are
    dropped."""
    active = list(range(len(rows[0])))
    while active:
        found = _solve([[row[i] for i in active] for row in rows], values)
        if min(found) >= 0:
            by_column = dict(zip(active, found, strict=True))
            return [by_column.get(i, 0.0) for i in range(len(rows[0]))]
        active.remove(active[found.index(min(found))])
    return [0.0] * len(rows[0])


def multiples(
    rows: Sequence[Sequence[float]],
    values: Sequence[float],
    planned: Sequence[float],
    *,
    weight: float,
) -> list[float]:
    """Return a factor >= 0 on each planned coefficient. Where `rows` do not tell the columns apart,
    as if they are proportional, the factors are equal.

    A ridge regression: all columns should have the one factor that fits best. `weight` is the
    penalty of seconds by which a column differs from that, relative to those of the residuals.
    """
    parts = [[n * each for n, each in zip(row, planned, strict=True)] for row in rows]
    whole = [sum(each) for each in parts]
    square = sum(each * each for each in whole)
    if not square:
        return [1.0] * len(planned)
    common = sum(a * value for a, value in zip(whole, values, strict=True)) / square
    norms = [sum(part[i] ** 2 for part in parts) ** 0.5 for i in range(len(planned))]
    scaled = [[a / n if n else 0.0 for a, n in zip(part, norms, strict=True)] for part in parts]
    root = weight**0.5
    scaled += [[root * (i == k) for k in range(len(norms))] for i in range(len(norms))]
    found = least_squares(scaled, [*values, *(root * common * n for n in norms)])
    return [each / n if n else 0.0 for each, n in zip(found, norms, strict=True)]


def _solve(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Solve the normal equations by elimination; a column without information gets 0."""
    size = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * value for row, value in zip(rows, values, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:
            continue
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [m[-1] / m[i] if abs(m[i]) > 1e-12 else 0.0 for i, m in enumerate(matrix)]


def union(intervals: Sequence[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def overlap(interval: Interval, others: Sequence[Interval]) -> float:
    """Return the length of `interval` that the ordered, disjoint `others` cover."""
    start, stop = interval
    first = bisect_left(others, (start, start))
    found = 0.0
    for other in others[max(0, first - 1) :]:
        if other[0] >= stop:
            break
        found += max(0.0, min(stop, other[1]) - max(start, other[0]))
    return found
