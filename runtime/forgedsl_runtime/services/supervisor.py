"""Watches every mesh; a generator replica or a pool of rewards that dies is started again.

    watch fails, host is gone, a rank is silent -> client.lost (its requests go elsewhere)
        |-> spawn, on another host if its own is gone -> set up -> client.restore
        |       `-> it died during the restart: try again
        |-> no host has room: the run goes on with the other replicas
        `-> failures (the run ends): another service, the last replica, or too many deaths

The death of a process is noticed after some ten seconds. Its completions are sampled again from the
start, with the current weights. Their policy age can only shrink, so the age bound of the plan
still holds. Calls of a reward are made again, and trajectories of an environment are run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from forgedsl.diagnostics import counted
from forgedsl.errors import RunError
from forgedsl_runtime.endpoints import ServiceError, ServiceFailure
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.meshes import DEATHS, Fleet
from forgedsl_runtime.services.endpoints import MonarchEndpoints, Pool
from forgedsl_runtime.upstream.monarch import Mesh

HOSTS_SECONDS = 1.0
BEAT_SECONDS, SILENT_SECONDS = 10.0, 120.0
"""interval between heartbeats of a rank, and time limit for its answer. A rank that computes still
answers, because it computes on another thread than its event loop"""

Restart = Callable[[Mesh], Awaitable[Mesh]]


class Supervisor:
    """Restarts dead meshes of a fleet where possible."""

    def __init__(
        self, fleet: Fleet, endpoints: MonarchEndpoints, events: EventLog, restart: Restart
    ) -> None:
        self._fleet = fleet
        self._endpoints = endpoints
        self._events = events
        self._restart = restart
        self._tasks: list[asyncio.Task[None]] = []
        self._ends: dict[int, asyncio.Future[str]] = {}
        """by mesh: resolved with a message when its host is gone"""

    def start(self) -> None:
        """Start one task per mesh, and one that watches the hosts."""
        self._tasks = [
            asyncio.create_task(self._keep_running(mesh)) for mesh in self._fleet.all_meshes()
        ]
        self._tasks.append(asyncio.create_task(self._watch_hosts()))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _watch_hosts(self) -> None:
        """Watch for lost hosts: the launcher notices them first, and their meshes must move
        elsewhere."""
        hosts = self._fleet.hosts
        while True:
            for index, why in hosts.lost_hosts().items():
                if index in hosts.gone:
                    continue
                hosts.gone.add(index)
                self._events.emit("host.lost", host=index, why=why)
                for mesh in self._fleet.all_meshes():
                    end = self._ends.get(id(mesh))
                    if index in mesh.on and end is not None and not end.done():
                        end.set_result(f"host {index} is lost: {why}")
            await asyncio.sleep(HOSTS_SECONDS)

    async def _wait_for_end(self, mesh: Mesh) -> ServiceError | None:
        """Wait until a mesh ends and return why; None if it was asked to end."""
        end = self._ends[id(mesh)] = asyncio.get_running_loop().create_future()
        watch = asyncio.ensure_future(mesh.call("watch"))
        silence = asyncio.create_task(self._wait_for_silence(mesh))
        try:
            await asyncio.wait((watch, end, silence), return_when=asyncio.FIRST_COMPLETED)
            if end.done() or silence.done():
                why = end.result() if end.done() else silence.result()
                message = f"{mesh.name}: {why}"
                failure = ServiceFailure(
                    service=mesh.service, origin=mesh.origin, message=message, died=True
                )
                return ServiceError(failure, died=True)
            error = watch.exception()
            if error is not None and not isinstance(error, ServiceError):
                raise error
            return error
        finally:
            watch.cancel()
            silence.cancel()
            del self._ends[id(mesh)]

    @staticmethod
    async def _wait_for_silence(mesh: Mesh) -> str:
        """Return when a rank has not answered for SILENT_SECONDS: it is stopped or overloaded, and
        its peers would wait for it forever. The end of a process is reported by `watch`, not here.
        """
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            start = asyncio.get_running_loop().time()
            quiet = await mesh.unresponsive_ranks(SILENT_SECONDS)
            if quiet and asyncio.get_running_loop().time() - start >= SILENT_SECONDS:
                return f"{mesh.describe_ranks(quiet)} has not answered for {SILENT_SECONDS:.0f} s"

    async def _keep_running(self, mesh: Mesh) -> None:
        while (error := await self._wait_for_end(mesh)) is not None:
            failure, fresh = error.failure, None
            while fresh is None:
                pool = self._endpoints.pool(mesh)
                known = mesh.service in self._endpoints.samplers or pool is not None
                if not known or not error.died or mesh.deaths >= DEATHS:
                    self._endpoints.failures.put_nowait(failure)
                    return
                if not self._fleet.move_to_live_host(mesh, failed=failure is not error.failure):
                    self._go_on_without(mesh, failure)
                    return
                try:
                    fresh = await self._replace(mesh, failure.message, pool)
                except (RunError, ServiceError) as problem:  # its host may be gone too
                    failure = _failed_restart(mesh, problem)
                    mesh.deaths += 1
            mesh = fresh

    def _go_on_without(self, dead: Mesh, failure: ServiceFailure) -> None:
        """Go on without a replica that cannot be restarted; the others take its requests. Without
        other replicas, report the failure."""
        client = self._endpoints.samplers.get(dead.service)
        left = 0 if client is None else sum(r.alive and r.mesh is not dead for r in client.replicas)
        if client is None or not left:
            message = f"{failure.message}; no other host is left to restart {dead.name} on"
            self._endpoints.failures.put_nowait(replace(failure, message=message))
            return
        unfinished = client.lost(dead)
        self._fleet.remove(dead)
        self._events.emit(
            "service.lost", service=dead.service, mesh=dead.name, unfinished=unfinished
        )
        text = (
            f"{failure.message}; no other host has free devices for it: {dead.service} "
            "continues with {}"
        )
        self._events.emit(
            "warning", service=dead.service, text=text.format(counted(left, "replica"))
        )

    async def _replace(self, dead: Mesh, message: str, pool: Pool | None) -> Mesh:
        """Start a replica or pool in place of a dead one."""
        if pool is not None:
            unfinished, what, fate = pool.lost(), "calls", "wait for its replacement"
        else:
            client, what = self._endpoints.samplers[dead.service], "completions"
            unfinished = client.lost(dead)
            others = any(replica.alive for replica in client.replicas)
            fate = "go to the other replicas" if others else "wait for its replacement"
        where = f" on host {dead.on.start}" if len(self._fleet.hosts.gone) else ""
        text = f"{message}; it is restarted{where}; its unfinished {what} ({unfinished}) {fate}"
        self._events.emit(
            "service.lost", service=dead.service, mesh=dead.name, unfinished=unfinished
        )
        self._events.emit("warning", service=dead.service, text=text)
        with self._events.span("restart", service=dead.service, mesh=dead.name):
            fresh = await self._restart(dead)
            if pool is not None:
                pool.restore(fresh)
            else:
                await client.restore(dead, fresh)
        self._fleet.replace(dead, fresh)
        return fresh


def _failed_restart(mesh: Mesh, error: RunError | ServiceError) -> ServiceFailure:
    reason = str(error) if isinstance(error, RunError) else error.failure.message
    return ServiceFailure(
        service=mesh.service,
        origin=mesh.origin,
        message=f"{mesh.name} died and could not be restarted: {reason}",
        died=True,
    )
