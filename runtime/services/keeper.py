"""Watches every mesh; a generator replica or a pool of rewards that dies is started again.

    watch fails -> client.lost (its requests go elsewhere) -> spawn, set up -> client.restore
              `-> failures (the run ends): another service, or too many deaths

A process is seen to be dead after some ten seconds. What it owed is sampled again from the start,
with the weights of then: a completion gets younger by it, never older than the plan proved. Calls
of a reward are made again, trajectories of an environment played again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forgedsl.errors import RunError
from forgedsl.runtime.endpoints import ServiceError, ServiceFailure
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.meshes import Fleet
from forgedsl.runtime.services.endpoints import MonarchEndpoints, Pool
from forgedsl.runtime.upstream.monarch import Mesh

DEATHS = 3
"""of one replica; one more ends the run: what kills it is no accident"""

HOSTS_SECONDS = 1.0

Restart = Callable[[Mesh], Awaitable[Mesh]]


class Keeper:
    """Keeps the meshes of a fleet alive, as far as that can be."""

    def __init__(
        self, fleet: Fleet, endpoints: MonarchEndpoints, events: EventLog, restart: Restart
    ) -> None:
        self._fleet = fleet
        self._endpoints = endpoints
        self._events = events
        self._restart = restart
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """One task per mesh."""
        self._tasks = [asyncio.create_task(self._keep(mesh)) for mesh in self._fleet.all()]
        self._tasks.append(asyncio.create_task(self._watch_hosts()))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _watch_hosts(self) -> None:
        """The launcher sees at once that a host is gone, and what was on it cannot start there."""
        while not (lost := self._fleet.hosts.lost()):
            await asyncio.sleep(HOSTS_SECONDS)
        for index, why in lost.items():
            for mesh in self._fleet.all():
                if index in mesh.on:
                    self._endpoints.report_failure(mesh, f"host {index} is gone: {why}")

    async def _keep(self, mesh: Mesh) -> None:
        while True:
            try:
                await mesh.call("watch")
                return
            except ServiceError as error:
                pool = self._endpoints.pool(mesh)
                known = mesh.service in self._endpoints.generators or pool is not None
                if not known or not error.died or mesh.deaths >= DEATHS:
                    self._endpoints.failures.put_nowait(error.failure)
                    return
                message = error.failure.message
            try:
                mesh = await self._replace(mesh, message, pool)
            except (RunError, ServiceError) as error:
                self._endpoints.failures.put_nowait(_hopeless(mesh, error))
                return

    async def _replace(self, dead: Mesh, message: str, pool: Pool | None) -> Mesh:
        """Another replica or pool in the place of a dead one."""
        if pool is not None:
            owed, what, fate = pool.lost(), "calls", "wait for it"
        else:
            client, what = self._endpoints.generators[dead.service], "completions"
            owed = client.lost(dead)
            others = any(replica.alive for replica in client.replicas)
            fate = "go to the other replicas" if others else "wait for it"
        text = f"{message}; it is started again; {what} that it owed ({owed}) {fate}"
        self._events.emit("service.lost", service=dead.service, mesh=dead.name, owed=owed)
        self._events.emit("warning", service=dead.service, text=text)
        with self._events.span("restart", service=dead.service, mesh=dead.name):
            fresh = await self._restart(dead)
            if pool is not None:
                pool.restore(fresh)
            else:
                await client.restore(dead, fresh)
        self._fleet.replace(dead, fresh)
        return fresh


def _hopeless(mesh: Mesh, error: RunError | ServiceError) -> ServiceFailure:
    reason = str(error) if isinstance(error, RunError) else error.failure.message
    return ServiceFailure(
        service=mesh.service,
        origin=mesh.origin,
        message=f"{mesh.name} died and could not be started again: {reason}",
    )
