"""Ctrl-C, SIGTERM and SIGHUP: the first signal saves and stops, the second prints what is not saved
yet, the third stops at once.

    signal --Interrupt()--> notice; the run is asked to stop
    events --on_event--> last step done, last step in a checkpoint
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from forgedsl.runs.checkpoints import resume_command
from forgedsl_runtime.events import Event, EventLog

EXIT_INTERRUPTED = 130
EXIT_PREEMPTED = 75
"""EX_TEMPFAIL: a scheduler took the hosts; continue with `--resume`"""


class Interrupt:
    """Handles the signals of a run. `act` asks the run to stop; its argument is True for a
    scheduler's notice (SIGTERM), which leaves little time. `clean_up` kills its processes and
    removes their files."""

    kinds = frozenset(("controller.start", "step.start", "step.end", "checkpoint.saved"))

    def __init__(self, events: EventLog, run_dir: Path, clean_up: Callable[[], None]) -> None:
        self._events = events
        self._run_dir = run_dir
        self.act: Callable[[bool], object] = lambda noticed: None
        self._clean_up = clean_up
        self._count = 0
        self._step = self._saved = 0
        self._training = self._in_step = False
        self._last: int = signal.SIGINT

    def code(self) -> int:
        """Return the exit code of an interrupted run."""
        preempted = self._last == signal.SIGTERM and resume_command(self._run_dir)
        return EXIT_PREEMPTED if preempted else EXIT_INTERRUPTED

    def on_event(self, event: Event) -> None:
        if event["kind"] == "controller.start":
            self._step = self._saved = event["step"]
            self._training = True
        elif event["kind"] == "step.start":
            self._in_step = True
        elif event["kind"] == "step.end":
            self._in_step = False
            self._step = event["step"] if "error" not in event else self._step
        elif event["kind"] == "checkpoint.saved":
            self._saved = event["step"]

    def __call__(self, number: int = signal.SIGINT) -> None:
        self._count += 1
        self._last = number
        if self._count == 1:
            self._say(self._first())
            self.act(number == signal.SIGTERM)
        elif self._count == 2:
            self._say(self._second())
        else:
            self._stop()

    def _say(self, text: str) -> None:
        self._events.emit("notice", text=text)

    def _first(self) -> str:
        if not self._training:
            return "interrupted before the first step: stopping the services"
        if self._step == self._saved and not self._in_step:
            since = f" since the checkpoint of step {self._saved}" if self._saved else ""
            return f"interrupted: no step has been taken{since}, so nothing is saved"
        return (
            "interrupted: a checkpoint is saved after the step in progress (Ctrl-C again shows "
            "which steps are not saved yet)"
        )

    def _second(self) -> str:
        if self._step > self._saved:
            return (
                f"not saved yet: {self._unsaved()}; Ctrl-C once more stops at once and loses them"
            )
        return "everything is saved and services are stopping; Ctrl-C once more stops at once"

    def _unsaved(self) -> str:
        first = self._saved + 1
        return f"step {first}" if first == self._step else f"steps {first} to {self._step}"

    def _stop(self) -> None:
        """Exit at once, without the normal end of the run; print which steps are lost."""
        lost = f"; {self._unsaved()} lost" if self._step > self._saved else ""
        on = resume_command(self._run_dir)
        more = f"; `{on}` continues after step {self._saved}" if on else ""
        self._events.emit("run.end", code=EXIT_INTERRUPTED, status="interrupted", seconds=0.0,
                          message=f"stopped at once{lost}", origin="", remedy="")  # fmt: skip
        self._clean_up()
        print(f"\nstopped at once{lost}{more}", file=sys.stderr, flush=True)
        os._exit(EXIT_INTERRUPTED)
