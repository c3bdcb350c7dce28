"""RewardPool: reward functions in processes of their own, with limits for every call.

The functions run in a child of each process of the mesh (forgedsl_runtime.rewards.process), so that
a crash or hang affects only the child.
"""

from __future__ import annotations

import asyncio
from typing import Any

from monarch.actor import concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.rewards.process import RewardProcess
from forgedsl_runtime.rewards.worker import Item, Outcome, Recipe


class RewardPool(ForgeActor):
    """Evaluates rewards of a job; each process of the mesh serves all of `names`."""

    def __init__(self, job: spec.Job, names: tuple[str, ...], job_dir: str) -> None:
        super().__init__()
        self._recipe = Recipe.of(job, job_dir, names)

    @concurrent_endpoint
    async def setup(self) -> dict[str, Any]:
        """Load the reward functions."""
        self._process = RewardProcess(self._recipe)
        await self._process.start()
        return {}

    @concurrent_endpoint
    async def score(self, items: list[Item]) -> list[list[Outcome]]:
        """Apply the rewards of each item to its rollout; outcomes are in the order of the names."""
        return await asyncio.gather(*(self._process.call(item) for item in items))

    def release(self) -> None:
        self._process.close()
