"""The rows of metrics, one per optimizer step, on their way to the sinks.

    run.start, metrics --row (dict)--> every sink

The fields are those of the contract; `runtime/meter.py` and the controller fill them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from forgedsl.runtime.events import Event

Row = dict[str, Any]

OWN = ("time", "kind")
"""fields of the event itself, not of the row"""


class Sink(Protocol):
    """Where rows go."""

    def resume(self, step: int) -> None:
        """Forget rows after `step`: the run continues from there."""

    def write(self, row: Row) -> None:
        """Keep one row."""

    def close(self) -> None:
        """Finish."""


def row_of(event: Event) -> Row:
    """The row in a `metrics` event."""
    return {name: value for name, value in event.items() if name not in OWN}


class Rows:
    """Hands each row to all sinks."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def on_event(self, event: Event) -> None:
        if event["kind"] == "run.start":
            for sink in self._sinks:
                sink.resume(event["recorded"])
        elif event["kind"] == "metrics":
            for sink in self._sinks:
                sink.write(row_of(event))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
