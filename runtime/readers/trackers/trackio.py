"""Trackio: a database on this machine, or a Space of the Hugging Face hub."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any

from forgedsl.lower.job import Job, Logging, Trackio
from forgedsl.runtime.readers.rows import Row, Sink
from forgedsl.runtime.readers.trackers.base import config_of, numbers, tag


class TrackioTracker:
    name = package = "trackio"

    def settings(self, logging: Logging) -> Trackio | None:
        return logging.trackio

    def open(self, settings: Trackio, job: Job, run_dir: Path) -> Sink | str:
        import trackio

        def begin() -> Any:
            return trackio.init(
                project=settings.project, name=run_dir.name, space_id=settings.space,
                config=config_of(job), embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

        with redirect_stdout(io.StringIO()):  # standard output is for the summary of the run
            # in a context of its own: at exit Trackio would end the current run again, and print
            return TrackioSink(copy_context().run(begin))


class TrackioSink:
    """A run in Trackio."""

    name = "Trackio"

    def __init__(self, run: Any) -> None:
        self._run = run

    def resume(self, step: int) -> None:
        """Do nothing: a run that goes on is another one there."""

    def write(self, row: Row) -> None:
        self._run.log({tag(k): v for k, v in numbers(row).items()}, step=row["step"])

    def close(self, code: int) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()
