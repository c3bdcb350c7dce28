"""The checkpoints of a run: one at a time, written while training goes on.

    step, state --begin--> trainers copy their state | files, ledgers --end--> complete

A trainer waits until its state is taken. On GPUs that is a copy, and the files are written during
the next steps. An error of the writer is raised by the next call.
"""

from __future__ import annotations

import asyncio
from typing import Any

from forgedsl.errors import RunError
from forgedsl.lower.job import Node
from forgedsl_runtime.controller.firing import bounded
from forgedsl_runtime.endpoints import Endpoints
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.guards import DeadlinePassed


class CheckpointWriter:
    """Writes checkpoints one at a time. `step` and `path` are those of the newest complete one,
    `took` is its duration in seconds. `asked` and `at` are the step and the loop time at which the
    last one began. Before the first checkpoint, `at` is the start of training."""

    def __init__(self, endpoints: Endpoints, events: EventLog, node: Node, step: int | None):
        self._endpoints, self._events, self._node = endpoints, events, node
        self.step = self.asked = step
        self.path: str | None = None
        self.at = self.took = 0.0
        self._task: asyncio.Task[None] | None = None
        self._paused: float | None = None

    async def begin(
        self, step: int, state: dict[str, Any], seconds: float, replay: bytes | None = None
    ) -> None:
        """Begin a checkpoint when the one before is complete; return when trainers may go on."""
        await self.end()
        taken, self.asked, self._paused = asyncio.Event(), step, None
        self._task = asyncio.create_task(self._write(step, state, seconds, taken, replay))
        self._task.add_done_callback(lambda _: taken.set())
        await taken.wait()
        self._paused = asyncio.get_running_loop().time() - self.at
        await self.check()

    async def check(self) -> None:
        """Raise the error of a checkpoint that failed in the background."""
        if self._task is not None and self._task.done():
            await self.end()

    async def end(self) -> None:
        """Wait until the checkpoint in progress is complete; raise its error, once."""
        if (task := self._task) is None:
            return
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._task = None

    def release_task(self) -> asyncio.Task[None] | None:
        """Return the task of the last checkpoint if it is running or has failed, and forget it. The
        caller must wait for it."""
        task, self._task = self._task, None
        return task

    async def _write(
        self,
        step: int,
        state: dict[str, Any],
        seconds: float,
        taken: asyncio.Event,
        replay: bytes | None,
    ) -> None:
        now = asyncio.get_running_loop().time
        self.at = start = now()
        call = self._endpoints.save(step, state, taken, replay)
        node, what = self._node, f"the checkpoint of step {step}"
        try:
            self.path = await bounded(call, what=what, node=node, seconds=seconds)
        except DeadlinePassed as late:
            raise RunError(str(late), origin=node.origin, service=node.target) from late
        self.step = step
        took = self.took = now() - start
        paused = took if self._paused is None else self._paused
        self._events.emit(
            "checkpoint.saved", step=step, path=self.path, seconds=took, paused=paused
        )
