"""Rows left out of a dataset: counted, reported, and compared with its error budget.

    DatasetReader --add(row, place, error, checked)--> counts, events, or the end of the run

A row is bad if a value that the dataset reads is missing, null, empty or of the wrong type, or if
its line cannot be read. Rows that are too long, or have nothing to learn, are left out by a rule of
the dataset. They are counted too, but are no mistakes and end no run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from forgedsl.errors import ForgeError, GuardError
from forgedsl.rows import BAD, DroppedRow
from forgedsl_runtime.program import RowError
from forgedsl_runtime.tracebacks import described, placed

FEW = 100
"""the error budget is a fraction of the rows checked so far, or of this number if fewer were
checked"""
SHOWN = 5
"""number of mistakes that a message names"""
MAX_EVENTS = 100
"""number of rows per reason with an event of their own"""

Tell = Callable[..., Any]
"""`EventLog.emit`, callable from any thread"""


class DroppedRows:
    """Rows of one dataset that were left out; each counts once."""

    def __init__(self, dataset: str, origin: str, budget: float) -> None:
        self.dataset = dataset
        self.origin = origin
        self.budget = budget
        self.tell: Tell | None = None
        self.summary_follows = False
        """True while a summary will be reported, so that single rows cause no warning"""
        self._rows: set[int] = set()
        self.counts: Counter[str] = Counter()
        """rows by reason"""
        self._places: dict[str, list[str]] = {}
        """the first rows of each mistake"""
        self._times: Counter[str] = Counter()
        self._other: dict[str, str] = {}
        """the first row of each reason that is no mistake"""
        self._remedy = ""
        self.sources = ""
        """how the columns of a mixture's sources differ"""

    def add(self, row: int, place: str, error: Exception, checked: int) -> None:
        """Count the row at `place`; `checked` rows were checked so far.

        Raises:
            GuardError: there are more bad rows than the budget allows.
        """
        if row in self._rows:
            return
        self._rows.add(row)
        reason = error.reason if isinstance(error, DroppedRow) else BAD
        why, counts = _description(error), self.counts
        counts[reason] += 1
        if counts[reason] <= MAX_EVENTS:
            self.emit("row.dropped", row=place, reason=reason, message=why)
        if reason != BAD:
            self._other.setdefault(reason, f"{place}: {why}")
            return
        if why in self._places or len(self._places) < SHOWN:
            self._places.setdefault(why, []).append(place)
            self._times[why] += 1
            del self._places[why][SHOWN:]
            self._remedy = self._remedy or getattr(error, "remedy", "")
        if not self.summary_follows and str(counts[BAD]).strip("0") == "1":
            times = "" if counts[BAD] == 1 else f" ({counts[BAD]} so far)"
            self.emit("warning", text=f"dataset {self.dataset}: left out {place}{times}: {why}")
        if counts[BAD] > self.budget * max(checked, FEW):
            raise self._exhausted(counts[BAD], checked)

    def report(self, checked: int, rows: int, seconds: float) -> None:
        """Report the result of checking `checked` of `rows` rows."""
        counts = self.counts
        self.emit(
            "data.checked", rows=rows, checked=checked, dropped=dict(counts),
            seconds=round(seconds, 3),
        )  # fmt: skip
        if counts:
            text = f"dataset {self.dataset}: {self.left_out(checked)}{self.examples()}"
            self.emit("warning", text=text)

    def summary(self) -> str:
        """Return the counts as text: `bad row: 3, too long: 12`."""
        return ", ".join(f"{reason}: {count}" for reason, count in sorted(self.counts.items()))

    def left_out(self, checked: int) -> str:
        """Return `2 of 11 rows left out (bad row: 1, too long: 1)`, or "" if none were."""
        total = self.counts.total()
        return f"{total} of {checked} rows left out ({self.summary()})" if total else ""

    def examples(self) -> str:
        """Return lines with the first row of each mistake and of every other reason, and the
        differences between sources."""
        mistakes = (f"{of[0]}: {why}{self._other_rows(why)}" for why, of in self._places.items())
        lines = (*mistakes, *self._other.values(), self.sources)
        return "".join(f"\n  {line}" for line in lines if line)

    def _other_rows(self, why: str) -> str:
        """Return other rows with the same mistake: ` (also 9, 12, 15, 21, ...: 60 rows)`."""
        others, times = self._places[why][1:], self._times[why]
        numbers = ", ".join(re.split(r"[ :]", place)[-1] for place in others)
        more = f", ...: {times} rows" if times > SHOWN else ""
        return f" (also {numbers}{more})" if others else ""

    def _exhausted(self, bad: int, checked: int) -> GuardError:
        return GuardError(
            f"dataset {self.dataset}: {bad} of the first {checked} rows cannot be used, more than "
            f"max_bad_rows = {self.budget:g} allows{self.examples()}",
            origin=self.origin,
            remedy=self._remedy
            or "fix the rows or the columns of the dataset, or raise max_bad_rows",
        )

    def emit(self, kind: str, **fields: Any) -> None:
        if self.tell is not None:
            self.tell(kind, dataset=self.dataset, **fields)


def _description(error: Exception) -> str:
    """Describe what is wrong with a row."""
    ours = isinstance(error, DroppedRow | RowError | ForgeError)
    return placed(error) if ours else described(error)
