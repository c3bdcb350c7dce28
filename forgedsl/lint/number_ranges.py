"""Rows of the tables of rule N907: a number of the program, and its range.

`numbers.py` has the rows about settings, `numbers_of_losses.py` those about losses and advantages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forgedsl.lint.view import View
from forgedsl.records import dataclass
from forgedsl.source import Span

INF = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number of the program. `message` says what it is and what it is compared with."""

    value: float
    span: Span
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """A row of the table: numbers of the program, and their range. `source` is a thread or paper
    with this range, or a run that failed outside of it."""

    name: str
    numbers: Callable[[View], Iterator[Number]]
    low: float = -INF
    high: float = INF
    source: str
    help: str
