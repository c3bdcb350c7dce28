"""RewardProcess: the actor's side of a process that evaluates rewards (worker.py).

    call(item) --slot--> child --socket--> worker    outcomes come one by one
                           `-- ended: its calls fail, or are made again

If a call ignores its time limit, the process is killed with all processes that it started. That
call fails; the other calls in the process are made again in a new one. If the process ends by
itself, all calls in it fail. The next call starts another process.
"""

from __future__ import annotations

import asyncio
from functools import partial

from forgedsl.errors import LaunchError
from forgedsl_runtime.rewards.worker import Item, Outcome, Recipe
from forgedsl_runtime.worker_process import GRACE, ProcessEnded, RestartingWorker, WorkerProcess

__all__ = ["GRACE", "RewardProcess"]
WORKER = "forgedsl_runtime.rewards.worker"


class RewardProcess(RestartingWorker):
    """Evaluates the rewards of a recipe, in one process at a time. What a `quiet` one prints is not
    shown."""

    def __init__(self, recipe: Recipe, *, quiet: bool = False) -> None:
        names = ", ".join(map(recipe.named, recipe.rewards))
        super().__init__(
            partial(
                WorkerProcess.start, WORKER, recipe, names=names, memory=recipe.memory,
                quiet=quiet or recipe.confined,
            )
        )  # fmt: skip
        self._recipe = recipe
        self._slots = asyncio.Semaphore(recipe.concurrency or 1)

    async def call(self, item: Item) -> list[Outcome]:
        """Return the outcomes of an item, in the order of its names."""
        async with self._slots:
            while True:
                try:
                    child = await self.start()
                except LaunchError as error:
                    return [Outcome(error=str(error)) for _ in item[0]]
                limit = self._recipe.limit(item)
                found: list[Outcome] | ProcessEnded = await child.ask(item, limit)
                if not isinstance(found, ProcessEnded):
                    return found
                if found.mine:
                    seconds = limit if found.late else 0.0
                    outcome = Outcome(error=found.cause, seconds=seconds, ended=True)
                    return [outcome for _ in item[0]]
