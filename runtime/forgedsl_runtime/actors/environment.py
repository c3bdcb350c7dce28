"""EnvironmentPool: environments in processes of their own, many trajectories in each."""

from __future__ import annotations

import asyncio
from typing import Any

from monarch.actor import concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.agents.process import AgentProcess
from forgedsl_runtime.environments.connection import Address, listen
from forgedsl_runtime.environments.process import EnvironmentProcess
from forgedsl_runtime.environments.program import kill_orphans
from forgedsl_runtime.environments.worker import ServedEnvironment


class EnvironmentPool(ForgeActor):
    """One process of the pool of an environment."""

    def __init__(self, job: spec.Job, name: str, job_dir: str) -> None:
        super().__init__()
        self._served = ServedEnvironment(
            name=name, environment=job.environments[name], job_dir=job_dir
        )

    @concurrent_endpoint
    async def setup(self) -> dict[str, Any]:
        """Load the class; start the endpoint of agents."""
        self._process: EnvironmentProcess
        if self._served.environment.agent:
            # this process may replace one that died and left programs running
            if self._served.environment.program is not None:
                await asyncio.to_thread(kill_orphans)
            self._process = process = AgentProcess(self._served)
            await process.endpoint.start()
        else:
            self._process = EnvironmentProcess(self._served)
        await self._process.start()
        self._servers, self._address = await listen(self._process.answer)
        return {}

    @concurrent_endpoint
    async def listen(self) -> Address:
        """Return the address at which this process answers requests about its trajectories."""
        return self._address

    def release(self) -> None:
        self._process.close()
