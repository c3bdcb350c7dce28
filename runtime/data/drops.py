"""Rows that are left out of a dataset: counted, named, and held against its error budget.

    DatasetReader --add(row, place, reason, why)--> counts, events, or the end of the run

A row is bad if what the dataset reads of it is missing, null, empty or of the wrong type, or if its
line cannot be read. Rows that are too long, or have nothing to learn, are left out by a rule of the
dataset: they are counted as well, but are nobody's mistake and end no run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from forgedsl.errors import ForgeError, GuardError
from forgedsl.rows import BAD, DroppedRow
from forgedsl.runtime.places import described, placed
from forgedsl.runtime.program import RowError

FEW = 100
"""the budget is a share of the rows looked at, or of this number while they are fewer"""
SHOWN = 5
"""bad rows that a message names"""
MAX_EVENTS = 100
"""rows of one reason with an event of their own"""

Tell = Callable[..., Any]
"""`EventLog.emit`, callable from any thread"""


class Drops:
    """The rows of one dataset that were left out, each counted once."""

    def __init__(self, dataset: str, origin: str, budget: float) -> None:
        self.dataset = dataset
        self.origin = origin
        self.budget = budget
        self.tell: Tell | None = None
        self.told_by_hand = False
        """the counts are said as a whole, once, so that no single row is a warning"""
        self._reason_by_row: dict[int, str] = {}
        self._first: list[str] = []
        self._other: dict[str, str] = {}
        """the first row of each reason that is nobody's mistake"""
        self._remedy = ""
        self.sources = ""
        """how the columns of a mixture's sources differ"""

    @property
    def counts(self) -> Counter[str]:
        """Rows by reason."""
        return Counter(self._reason_by_row.values())

    def add(self, row: int, place: str, error: Exception, checked: int) -> None:
        """Book the row at `place`, one of `checked` that were looked at.

        Raises:
            GuardError: there are more bad rows than the budget allows.
        """
        if row in self._reason_by_row:
            return
        reason = error.reason if isinstance(error, DroppedRow) else BAD
        self._reason_by_row[row] = reason
        why = _words(error)
        counts = self.counts
        if counts[reason] <= MAX_EVENTS:
            self.emit("row.dropped", row=place, reason=reason, message=why)
        if reason != BAD:
            self._other.setdefault(reason, f"{place}: {why}")
            return
        if len(self._first) < SHOWN:
            self._first.append(f"{place}: {why}")
            self._remedy = self._remedy or getattr(error, "remedy", "")
        if not self.told_by_hand and str(counts[BAD]).strip("0") == "1":
            times = "" if counts[BAD] == 1 else f" ({counts[BAD]} by now)"
            self.emit("warning", text=f"dataset {self.dataset}: left out{times} {place}: {why}")
        if counts[BAD] > self.budget * max(checked, FEW):
            raise self._exhausted(counts[BAD], checked)

    def say(self, checked: int, rows: int, seconds: float) -> None:
        """What a first look at `checked` of `rows` rows has found."""
        counts = self.counts
        self.emit(
            "data.checked", rows=rows, checked=checked, dropped=dict(counts),
            seconds=round(seconds, 3),
        )  # fmt: skip
        if counts:
            text = f"dataset {self.dataset}: {self.left_out(checked)}{self.examples()}"
            self.emit("warning", text=text)

    def summary(self) -> str:
        """`bad row: 3, too long: 12`."""
        return ", ".join(f"{reason}: {count}" for reason, count in sorted(self.counts.items()))

    def left_out(self, checked: int) -> str:
        """`2 of 11 rows left out (bad row: 1, too long: 1)`, or nothing."""
        total = self.counts.total()
        return f"{total} of {checked} rows left out ({self.summary()})" if total else ""

    def examples(self) -> str:
        """The first bad rows, one of every other reason, and how sources differ, one a line."""
        lines = (*self._first, *self._other.values(), self.sources)
        return "".join(f"\n  {line}" for line in lines if line)

    def _exhausted(self, bad: int, checked: int) -> GuardError:
        return GuardError(
            f"dataset {self.dataset}: {bad} of the first {checked} rows cannot be used, more than "
            f"max_bad_rows = {self.budget:g} allows{self.examples()}",
            origin=self.origin,
            remedy=self._remedy
            or "mend the rows or the columns of the dataset, or raise max_bad_rows",
        )

    def emit(self, kind: str, **fields: Any) -> None:
        if self.tell is not None:
            self.tell(kind, dataset=self.dataset, **fields)


def _words(error: Exception) -> str:
    """What is wrong with a row."""
    ours = isinstance(error, DroppedRow | RowError | ForgeError)
    return placed(error) if ours else described(error)
