"""EnvironmentProcess: a process of an environment (worker.py), as its actor sees it."""

from __future__ import annotations

import asyncio

from forgedsl.errors import LaunchError
from forgedsl.runtime.child import Child, Ended
from forgedsl.runtime.environments.worker import Reply, Request, Served

WORKER = "forgedsl.runtime.environments.worker"


class EnvironmentProcess:
    """Holds trajectories, in one process at a time; those in one that ended are lost."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._starting = asyncio.Lock()
        self._now: Child | None = None
        self._blamed: Child | None = None
        """the last child whose end was told as the fault of a trajectory"""

    async def start(self, seconds: float | None = None) -> None:
        """Wait until it can be called, as long as a run does or so many `seconds`.

        Raises:
            LaunchError: the environment cannot be loaded.
        """
        await self._up(seconds)

    async def ask(self, request: Request) -> Reply:
        """Do something with the object of a trajectory."""
        try:
            child = await self._up()
        except LaunchError as error:
            return Reply(error=str(error), ended=True)
        found: Reply | Ended = await child.ask(request, request.seconds)
        if not isinstance(found, Ended):
            return found
        lost = not found.mine or child is self._blamed  # who ended it is asked about once
        self._blamed = child
        return Reply(error=found.cause, ended=True, lost=lost)

    def close(self) -> None:
        if self._now is not None:
            self._now.kill("it is closed")

    async def _up(self, seconds: float | None = None) -> Child:
        async with self._starting:
            if self._now is None or not self._now.alive:
                name = f"environment {self._served.name}"
                self._now = await Child.begin(WORKER, self._served, names=name, seconds=seconds)
            return self._now
