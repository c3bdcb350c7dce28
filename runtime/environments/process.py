"""EnvironmentProcess: a process of an environment (worker.py), as its actor sees it."""

from __future__ import annotations

from functools import partial

from forgedsl.errors import LaunchError
from forgedsl.runtime.child import Child, Ended, Lasting
from forgedsl.runtime.environments.worker import Reply, Request, Served

WORKER = "forgedsl.runtime.environments.worker"


class EnvironmentProcess(Lasting):
    """Holds trajectories, in one process at a time; those in one that ended are lost."""

    def __init__(self, served: Served) -> None:
        super().__init__(partial(Child.begin, WORKER, served, names=f"environment {served.name}"))
        self._blamed: Child | None = None
        """the last child whose end was told as the fault of a trajectory"""

    async def answer(self, request: Request) -> tuple[Reply, bool]:
        """As `ask`, and that more may be asked."""
        return await self.ask(request), False

    async def ask(self, request: Request) -> Reply:
        """Do something with the object of a trajectory."""
        try:
            child = await self.start()
        except LaunchError as error:
            return Reply(error=str(error), ended=True)
        found: Reply | Ended = await child.ask(request, request.seconds)
        if not isinstance(found, Ended):
            return found
        lost = not found.mine or child is self._blamed  # who ended it is asked about once
        if request.op != "close":  # its trajectory is over
            self._blamed = child
        return Reply(error=found.cause, ended=True, lost=lost)
