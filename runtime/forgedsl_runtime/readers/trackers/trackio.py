"""Trackio: a database on this machine, or a Space of the Hugging Face hub."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any

from forgedsl.lower.job import Job, Logging, Trackio
from forgedsl_runtime.readers.rows import Sink
from forgedsl_runtime.readers.trackers.base import RunSink, config_of


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
            # At exit, Trackio would end its current run and print. So start this run in another
            # context, where it is not the current one. `close` ends it.
            return TrackioSink(copy_context().run(begin))


class TrackioSink(RunSink):
    """A run in Trackio. A resumed run is a new run there."""

    name = "Trackio"

    def close(self, code: int) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()
