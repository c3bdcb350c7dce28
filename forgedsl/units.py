"""Units of numbers: `30s` in seconds, `8GiB` in bytes."""

from __future__ import annotations

UNITS = {
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "k": 1e3,
    "M": 1e6,
}

OTHER_UNITS = {
    "m": "min", "mins": "min", "minutes": "min", "sec": "s", "secs": "s", "seconds": "s",
    "hours": "h", "hr": "h", "hrs": "h", "day": "d", "days": "d", "kb": "KiB", "mb": "MiB",
    "gb": "GiB", "tb": "TiB", "g": "GiB", "gib": "GiB", "mib": "MiB", "kib": "KiB", "tib": "TiB",
}  # fmt: skip
"""units as people write them elsewhere, in lower case -> units of the language"""

COUNTED = frozenset({
    "completions", "epochs", "gpus", "groups", "prompts", "rows", "samples", "steps", "tokens",
    "versions",
})  # fmt: skip
"""what settings count: their numbers have no unit"""
