"""Backend of a rehearsal: the same meshes and endpoints, with actors that only sleep."""

from __future__ import annotations

from forgedsl.launchers import registry
from forgedsl_runtime.hosts.base import Hosts
from forgedsl_runtime.hosts.registry import start_hosts
from forgedsl_runtime.meshes import Fleet
from forgedsl_runtime.service_backend import Run
from forgedsl_runtime.sim.fleet import NOTICE_SECONDS
from forgedsl_runtime.stub import endpoints, meshes
from forgedsl_runtime.stub.rehearsal import Rehearsal
from forgedsl_runtime.upstream.monarch import Mesh


class RehearsalBackend:
    """Backend of a rehearsal; implements `service_backend.ServiceBackend`. It needs no GPU, model
    or data, and starts only hosts on this machine."""

    loads_models = False

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal

    def spawn(self, this: Run) -> Fleet:
        here = registry.launcher(this.job.launcher.kind).one_machine
        logs = this.run_dir / "logs"
        hosts = start_hosts(this.job, this.scratch.temp, logs) if here else Hosts()
        return meshes.spawn(this.job, self.rehearsal, this.run_dir, hosts)

    async def prepare(self, this: Run, fleet: Fleet) -> None:
        await meshes.setup(fleet, this.run_dir, this.tell)

    async def connect(self, this: Run, fleet: Fleet, data: None) -> endpoints.StubEndpoints:
        return await endpoints.build(this.job, fleet, this.run_dir, self.rehearsal, this.events)

    async def restart(self, this: Run, dead: Mesh) -> Mesh:
        engine = self.rehearsal.latencies.engines.get(dead.service)
        # `Engine.start` includes the time until the death is noticed.
        start = engine.start - NOTICE_SECONDS if engine is not None else 0.0
        return await meshes.restart(dead, max(0.0, start), this.tell)
