"""Bandwidth of weight syncs from the rows of a run, and which of them are slow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

RATE, SECONDS = "sync_bytes_per_s/", "sync_s/"
"""prefixes of fields of a row; the name of the receiving service follows"""
TELLING = 0.1
"""fraction of a step from which a sync is reported as slow"""


def rate(per_second: float) -> str:
    """Format bytes per second: 24.1 MB/s, 1.2 GB/s."""
    size, unit = (1e9, "GB") if per_second >= 1e9 else (1e6, "MB")
    return f"{per_second / size:.3g} {unit}/s"


def receivers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the services that received weights."""
    return sorted({key.removeprefix(RATE) for row in rows for key in row if key.startswith(RATE)})


def rates(rows: Sequence[dict[str, Any]]) -> str:
    """Return the median rate to each sampler: `24.1 MB/s to generator`."""
    found = {name: [row[RATE + name] for row in rows if RATE + name in row]
             for name in receivers(rows)}  # fmt: skip
    return ", ".join(f"{rate(statistics.median(each))} to {name}" for name, each in found.items())


def slow(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the slow syncs: (`sync generator`, `2.1 s at 1.2 GB/s`)."""
    found = []
    for name in receivers(rows):
        mine = [row for row in rows if RATE + name in row]
        took = statistics.fmean(row[SECONDS + name] for row in mine)
        if took >= TELLING * statistics.fmean(row["step_s"] for row in rows):
            speed = statistics.fmean(row[RATE + name] for row in mine)
            found.append((f"sync {name}", f"{took:.2g} s at {rate(speed)}"))
    return found
