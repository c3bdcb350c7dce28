"""The meshes of a rehearsal: one process per replica on this host, whatever the plan assigns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.lower.hosts import hosts_of
from forgedsl_runtime.actors.stub_actors import StubGenerator, StubRewards, StubTitan
from forgedsl_runtime.hosts.base import Hosts
from forgedsl_runtime.meshes import POOL, Fleet, set_up
from forgedsl_runtime.stub.rehearsal import Rehearsal
from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "FORGEDSL_ACTOR": "1"}


def spawn(job: spec.Job, rehearsal: Rehearsal, run_dir: Path, hosts: Hosts) -> Fleet:
    """Start one process for each replica of a service, and all processes of the reward pools."""
    logs = run_dir / "logs"
    logs.mkdir(exist_ok=True)
    model = rehearsal.latencies
    fleet = Fleet(samplers={}, trainers={}, rewards={}, hosts=hosts)
    for name, service in job.with_processes.items():
        first = service.mesh.name
        if name in job.samplers:
            names = [f"{first}{i}" if i else first for i in range(service.mesh.replicas)]
            args: tuple[Any, ...] = (model.engines[name],)
            fleet.samplers[name] = [
                _mesh(hosts, hosts_of(service.mesh, i), job, name, mesh, StubGenerator, args, logs)
                for i, mesh in enumerate(names)
            ]
        else:
            args = (model.titans[name], job.trainers[name].learning_rate, rehearsal.seed)
            on = hosts_of(service.mesh)
            fleet.trainers[name] = _mesh(hosts, on, job, name, first, StubTitan, args, logs)
    pure = tuple(name for name, reward in job.rewards.items() if reward.is_pure)
    pools = [(POOL, pure)] if pure else []
    pools += [(f"reward_{n}", (n,)) for n, reward in job.rewards.items() if not reward.is_pure]
    for mesh_name, names_ in pools:
        limits = {name: job.rewards[name].timeout for name in names_}
        times = {name: model.rewards[name] for name in names_}
        size = max(job.rewards[name].procs for name in names_)
        owner = names_[0] if len(names_) == 1 else mesh_name
        places = max(job.rewards[name].concurrency or 1 for name in names_)
        arguments = (times, limits, rehearsal.seed, places)
        on = range(job.launcher.pools, job.launcher.pools + 1)
        mesh = _mesh(hosts, on, job, owner, mesh_name, StubRewards, arguments, logs, size=size)
        fleet.rewards.update(dict.fromkeys(names_, mesh))
    return fleet


def _mesh(
    hosts: Hosts,
    on: range,
    job: spec.Job,
    service: str,
    name: str,
    actor: type,
    args: tuple[Any, ...],
    logs: Path,
    *,
    size: int = 1,
) -> Mesh:
    on = range(on.start, on.start + 1)  # one process, whatever the plan assigns
    return Mesh.spawn(
        service=service, origin=job.origins.get(service, ""), name=name, size=size, actor=actor,
        args=args, kwargs={}, start=bootstrap(ENVIRONMENT, logs / name, "cpu"), logs=logs / name,
        hosts=hosts.attach(on), on=on, end=hosts.kill,
    )  # fmt: skip


async def setup(fleet: Fleet, run_dir: Path, tell: Callable[..., Any]) -> None:
    """Wait until every process answers."""
    async with asyncio.TaskGroup() as tasks:
        for mesh in fleet.all_meshes():
            args = (str(run_dir),) if mesh in fleet.trainers.values() else ()
            tasks.create_task(set_up(mesh, args, tell))


async def restart(dead: Mesh, seconds: float, tell: Callable[..., Any]) -> Mesh:
    """Restart a replica; wait as long as the restart of a real one takes."""
    began = asyncio.get_running_loop().time()
    fresh = dead.respawn()
    await set_up(fresh, (), lambda *facts: None)
    spent = asyncio.get_running_loop().time() - began
    await asyncio.sleep(max(0.0, seconds - spent))
    tell(fresh, asyncio.get_running_loop().time() - began, {"rehearsal": True})
    return fresh
