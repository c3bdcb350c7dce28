"""What generated program modules call: rows, text helpers, and scalar mathematics.

Pure Python; the tensor functions of a program module use torch directly, and the helpers over
groups here only call methods of the tensors they are given.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from math import exp, expm1, log, log1p, sqrt, tanh
from math import isfinite as is_finite
from typing import Any

__all__ = [
    "Row", "after", "before", "chat", "clamp", "env", "exp", "expm1", "is_finite", "log", "log1p",
    "log_sigmoid", "lower", "matches", "sibling_max", "sibling_min", "sibling_sum", "sigmoid",
    "sign", "softplus", "sqrt", "strip", "tanh",
]  # fmt: skip


class Row:
    """A dataset row: `row.question`, nested columns too."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._columns:
            known = ", ".join(sorted(self._columns))
            raise KeyError(f"the row has no column `{name}`; its columns are {known}")
        value = self._columns[name]
        return Row(value) if isinstance(value, Mapping) else value

    def __repr__(self) -> str:
        return f"Row({dict(self._columns)!r})"


# ---- text


def chat(system: str | None, user: str) -> list[dict[str, str]]:
    """Chat messages: the system message (none: left out) and the user's turn."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": str(user)}]


def after(s: str, sep: str) -> str:
    """What follows the first `sep`; all of `s` without one."""
    head, found, tail = s.partition(sep)
    return tail if found else head


def before(s: str, sep: str) -> str:
    """What precedes the first `sep`; all of `s` without one."""
    return s.partition(sep)[0]


def strip(s: str) -> str:
    """Without surrounding white space."""
    return s.strip()


def lower(s: str) -> str:
    """In lower case."""
    return s.lower()


def matches(s: str, pattern: str) -> bool:
    """Whether the regular expression occurs in `s`."""
    return re.search(pattern, s) is not None


def env(name: str) -> str:
    """An environment variable; it must be set."""
    if name not in os.environ:
        raise KeyError(f"environment variable {name} is not set")
    return os.environ[name]


# ---- numbers


def clamp(x: float, lo: float, hi: float) -> float:
    """x, at least lo and at most hi."""
    return min(max(x, lo), hi)


def sign(x: float) -> float:
    """-1, 0 or 1."""
    return float((x > 0) - (x < 0))


def sigmoid(x: float) -> float:
    """The logistic function, without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def softplus(x: float) -> float:
    """log(1 + exp(x)), without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def log_sigmoid(x: float) -> float:
    """log(sigmoid(x)), without overflow."""
    return -softplus(-x)


# ---- groups of a step: `group[i]` is the number, below len(x), of the group of sequence i


def sibling_sum(x: Any, group: Any) -> Any:
    """For each sequence, the sum over its group."""
    return x.new_zeros(x.shape).index_add(0, group, x)[group]


def sibling_max(x: Any, group: Any) -> Any:
    """For each sequence, the largest value of its group."""
    return x.new_zeros(x.shape).scatter_reduce(0, group, x, "amax", include_self=False)[group]


def sibling_min(x: Any, group: Any) -> Any:
    """For each sequence, the smallest value of its group."""
    return x.new_zeros(x.shape).scatter_reduce(0, group, x, "amin", include_self=False)[group]
