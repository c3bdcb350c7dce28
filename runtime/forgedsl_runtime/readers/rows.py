"""Pass rows of metrics, one per optimizer step, to the sinks.

    run.start, metrics, run.end --row (dict)--> a sink

docs/design/contracts.md lists the fields; `forgedsl_runtime.step_metrics` and the controller fill
them.
"""

from __future__ import annotations

from typing import Any, Protocol

from forgedsl_runtime.events import Event

Row = dict[str, Any]

OWN = ("time", "kind")
"""fields of the event itself, not of the row"""


class Sink(Protocol):
    """A destination of rows; `name` is its name for people."""

    name: str

    def resume(self, step: int) -> None:
        """Discard rows after `step`: the run continues from there."""

    def write(self, row: Row) -> None:
        """Store one row."""

    def close(self, code: int) -> None:
        """Close the sink; `code` is the exit code of the run."""


def row_of(event: Event) -> Row:
    """Return the row in a `metrics` event."""
    return {name: value for name, value in event.items() if name not in OWN}


class Rows:
    """Passes each row to a sink."""

    kinds = frozenset(("run.start", "metrics", "run.end"))

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._code = 1

    def on_event(self, event: Event) -> None:
        if event["kind"] == "run.start":
            self._sink.resume(event["recorded"])
        elif event["kind"] == "metrics":
            self._sink.write(row_of(event))
        elif event["kind"] == "run.end":
            self._code = event["code"]

    def close(self) -> None:
        self._sink.close(self._code)
