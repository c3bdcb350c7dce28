"""The checkpoints of a run: one at a time, written while training goes on.

    step, state --begin--> trainers hand out their state | files, books --end--> whole

A trainer waits until its state is taken; where that is a copy (on GPUs) the files are written
beside the next steps. What fails there is raised by the next call.
"""

from __future__ import annotations

import asyncio
from typing import Any

from forgedsl.errors import RunError
from forgedsl.lower.job import Node
from forgedsl.runtime.controller.firing import bounded
from forgedsl.runtime.endpoints import Endpoints
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.guards import Late


class Saving:
    """`step` and `path` are those of the newest checkpoint that is whole; the last one was `asked`
    for at step `asked` and time `at` (of the loop; or training began then); the newest `took` so
    many seconds."""

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
        """Begin a checkpoint when the one before is whole; returns when trainers may go on."""
        await self.end()
        taken, self.asked, self._paused = asyncio.Event(), step, None
        self._task = asyncio.create_task(self._write(step, state, seconds, taken, replay))
        self._task.add_done_callback(lambda _: taken.set())
        await taken.wait()
        self._paused = asyncio.get_running_loop().time() - self.at
        await self.check()

    async def check(self) -> None:
        """Raise what a checkpoint failed of that nobody has waited for."""
        if self._task is not None and self._task.done():
            await self.end()

    async def end(self) -> None:
        """Return when the checkpoint in progress is whole; raises what it failed of, once."""
        if (task := self._task) is None:
            return
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._task = None

    def drop(self) -> asyncio.Task[None] | None:
        """The one in progress, or that failed unnoticed, for who ends the run."""
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
        except Late as late:
            raise RunError(str(late), origin=node.origin, service=node.target) from late
        self.step = step
        took = self.took = now() - start
        paused = took if self._paused is None else self._paused
        self._events.emit(
            "checkpoint.saved", step=step, path=self.path, seconds=took, paused=paused
        )
