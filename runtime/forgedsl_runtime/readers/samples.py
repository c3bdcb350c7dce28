"""samples.jsonl: a few completions of every step, for people.

In: the `examples` of `step.end` events (prompt, response, target, score and its parts by reward,
truncated, version, and the other answers of the group). Out: one JSON object per completion, with
the step that trained on it.
"""

from __future__ import annotations

import json
from pathlib import Path

from forgedsl_runtime.events import Event
from forgedsl_runtime.readers.sinks import keep_rows


class Samples:
    """Appends the examples of each step."""

    kinds = frozenset(("run.start", "step.end"))

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def on_event(self, event: Event) -> None:
        if event["kind"] == "run.start":
            self._file.close()
            keep_rows(self._path, event["resumed_from"] or 0)
            self._file = self._path.open("a", encoding="utf-8")
        elif event["kind"] == "step.end" and event.get("examples"):
            for example in event["examples"]:
                self._file.write(json.dumps({"step": event["step"], **example}) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()
