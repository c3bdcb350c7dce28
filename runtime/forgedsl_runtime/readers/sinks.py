"""Destinations of metrics rows: metrics.jsonl, TensorBoard, Prometheus, tracking services.

`open_sinks` returns the sinks that a job declares, and a notice for each that is not available.
"""

from __future__ import annotations

import json
from pathlib import Path

from forgedsl.lower.job import Job
from forgedsl.runs.data import whole
from forgedsl_runtime.events import replace_text
from forgedsl_runtime.readers.prometheus import PrometheusSink
from forgedsl_runtime.readers.rows import Row, Sink
from forgedsl_runtime.readers.trackers.base import numbers, opened, tag
from forgedsl_runtime.readers.trackers.registry import TRACKERS


class JsonlSink:
    """metrics.jsonl: one JSON object per optimizer step."""

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def resume(self, step: int) -> None:
        keep_rows(self._path, step)
        self._file.close()
        self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")

    def close(self, code: int) -> None:
        self._file.close()


def keep_rows(path: Path, last: int) -> None:
    """Drop the lines of a JSONL file whose `step` is after `last`, and incomplete lines. A run
    killed after its last checkpoint has rows of steps that will be done again."""
    with path.open("rb") as file:
        kept = [line for line in file if (row := whole(line)) is not None and row["step"] <= last]
    replace_text(path, b"".join(kept).decode())


class TensorBoardSink:
    """TensorBoard event files under `tensorboard/`, written without torch or TensorFlow."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def resume(self, step: int) -> None:
        """Do nothing: if steps repeat, TensorBoard shows the later file."""

    def write(self, row: Row) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag(k), simple_value=v) for k, v in numbers(row).items()]
        event = Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values))
        self._writer.add_event(event)

    def close(self, code: int) -> None:
        self._writer.close()


def open_sinks(job: Job, run_dir: Path) -> tuple[list[Sink], list[str]]:
    """Return the sinks of `job.logging`, and notices about those that are not available."""
    sinks: list[Sink] = []
    notices: list[str] = []
    if job.logging.jsonl:
        sinks.append(JsonlSink(run_dir / "metrics.jsonl"))
    if job.logging.tensorboard:
        sinks.append(TensorBoardSink(run_dir / "tensorboard"))
    if job.logging.prometheus is not None:
        try:
            sinks.append(PrometheusSink(job.logging.prometheus, run_dir.name))
        except OSError as error:
            notices.append(f"no metrics on port {job.logging.prometheus}: {error.strerror}")
    for tracker in TRACKERS:
        found = opened(tracker, job, run_dir)
        if isinstance(found, str):
            notices.append(found)
        elif found is not None:
            sinks.append(found)
    return sinks, notices
