"""One `metrics` event per optimizer step, in order of steps.

    step done --add--> held until its evaluations are there --> EventLog "metrics"

The result of an evaluation belongs to the record of the step whose weights it measured; the result
of the untrained model belongs to the first record. `eval/<name>` and `eval_version/<name>` are None
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forgedsl_runtime.controller.evals import EvalResult
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.step_metrics import Record, finite


class Records:
    """Emits metrics records in order. `recorded` is the last step whose record was emitted. With
    `hold_last`, a record is emitted only when the next step is done. Without a next step it is the
    last record, and the final evaluation is added to it."""

    def __init__(
        self,
        events: EventLog,
        evals: Iterable[str],
        *,
        recorded: int = 0,
        held: Iterable[Record] = (),
        hold_last: bool = False,
    ) -> None:
        self.recorded = recorded
        self._events = events
        self._evals = tuple(evals)
        self._hold_last = hold_last
        self._held: dict[int, Record] = {record["step"]: record for record in held}
        self._results: dict[int, Record] = {}
        self._missing: dict[int, set[str]] = {}

    @property
    def held(self) -> list[Record]:
        return list(self._held.values())

    def has_record(self, step: int) -> bool:
        return step in self._held

    def expect_eval(self, step: int, name: str) -> None:
        """Make the record of `step` wait for this evaluation."""
        self._missing.setdefault(step, set()).add(name)

    def add_eval(self, step: int, result: EvalResult) -> None:
        self._results.setdefault(step, {}).update(
            {f"eval/{result.name}": result.value, f"eval_version/{result.name}": result.version}
        )
        self._missing[step].discard(result.name)
        self._emit_ready()

    def add(self, record: Record) -> None:
        self._held[record["step"]] = finite(record)
        self._emit_ready()

    def flush(self) -> None:
        """Emit all held records, without evaluations that are missing."""
        for step in sorted(self._held):
            self._emit(step)

    def _emit_ready(self) -> None:
        for step in sorted(self._held):
            newest = step == max(self._held)
            if self._missing.get(step) or (newest and self._hold_last):
                return
            self._emit(step)

    def _emit(self, step: int) -> None:
        nothing: dict[str, Any] = {}
        for name in self._evals:
            nothing |= {f"eval/{name}": None, f"eval_version/{name}": None}
        record = self._held.pop(step) | nothing | self._results.pop(step, {})
        self.recorded = step
        self._events.emit("metrics", **record)
