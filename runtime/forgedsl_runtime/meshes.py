"""Job services -> running Monarch meshes.

    services --begin--> processes --run_actors--> meshes --setup--> ready actors
                          `- on the GPUs and with the threads of `place`

All processes start at once, and `setup` calls run in parallel: loading vLLM and torchtitan is slow.
Processes import them as they start, while this process calls user code once, finds the models and
imports the classes of actors. So this module and those that it imports at its top load neither
torch nor vLLM. A mesh that cannot start raises `RunError` with the tail of its log.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError, RunError, StartError
from forgedsl.launchers import registry
from forgedsl.lower import job as spec
from forgedsl.lower.hosts import hosts_of
from forgedsl.plan.gpus import detect_gpus
from forgedsl.plan.host import gpu_mask
from forgedsl_runtime.endpoints import ServiceError
from forgedsl_runtime.hosts.base import Hosts
from forgedsl_runtime.models import tenant_adapter, weights_folder
from forgedsl_runtime.services.registry import kind_of
from forgedsl_runtime.services.registry import load as load_kind
from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

SETUP_SECONDS = 600.0
DEATHS = 3
"""restarts of one replica; one more death ends the run, since the cause is systematic"""
POOL = "rewards"
"""mesh of the rewards that are pure functions; each Python reward has a mesh of its own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Resources of one mesh replica."""

    threads: int
    gpus: tuple[int, ...]
    hosts: range = range(1)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """All meshes of a run."""

    samplers: dict[str, list[Mesh]]
    """replicas, each on a mesh of its own"""
    trainers: dict[str, Mesh]
    """models on one mesh of ranks, trained and frozen"""
    rewards: dict[str, Mesh]
    """by reward name; several may share a mesh"""
    environments: dict[str, Mesh] = field(default_factory=dict)
    hosts: Hosts = field(default_factory=Hosts)
    rendezvous_stores: list[Any] = field(default_factory=list)
    """open rendezvous stores, through which the ranks of a trainer find each other"""
    folders: dict[str, Path] = field(default_factory=dict)
    """by service: the folder of its model"""
    placements: dict[str, list[Placement]] = field(default_factory=dict)
    """by service: the resources of each replica"""

    def all_meshes(self) -> list[Mesh]:
        """Return every mesh once."""
        pools = {id(mesh): mesh for mesh in self.rewards.values()}
        replicas = [mesh for meshes in self.samplers.values() for mesh in meshes]
        return [*self.trainers.values(), *replicas, *pools.values(), *self.environments.values()]

    def move_to_live_host(self, dead: Mesh, *, failed: bool = False) -> bool:
        """Prepare a mesh to start again. It stays where it was, unless one of its hosts is gone, or
        it `failed` to start there. Then it moves to the hosts with the fewest processes. A mesh
        with GPUs does not move: GPUs of other hosts are in use. Returns False if a host is gone and
        no other is free."""
        lost, size = bool(self.hosts.gone & set(dead.on)), len(dead.on)
        if not (lost or failed):
            return True
        gone = self.hosts.gone | set(dead.on)
        load = Counter(host for mesh in self.all_meshes() if mesh is not dead for host in mesh.on)
        slices = [range(i, i + size) for i in range(self.hosts.count - size + 1)]
        free = [hosts for hosts in slices if not gone & set(hosts) and not dead.on_gpus]
        if free:
            hosts = min(free, key=lambda hosts: sum(load[host] for host in hosts))
            dead.set_hosts(self.hosts.attach(hosts), hosts)
        return bool(free) or not lost

    def remove(self, dead: Mesh) -> None:
        """Remove a replica that is not started again."""
        for meshes in self.samplers.values():
            meshes[:] = [mesh for mesh in meshes if mesh is not dead]

    def replace(self, dead: Mesh, fresh: Mesh) -> None:
        """Replace a generator replica or a pool by a new mesh."""
        for meshes in self.samplers.values():
            meshes[:] = [fresh if mesh is dead else mesh for mesh in meshes]
        for pools in (self.rewards, self.environments):
            for name, mesh in pools.items():
                pools[name] = fresh if mesh is dead else mesh


def spawn(
    job: spec.Job, run_dir: Path, job_dir: Path, shared: dict[str, str], hosts: Hosts | None = None
) -> Fleet:
    """Find the models, start the processes of every service and the actors in them; return before
    they are ready. The arguments are those of `begin`.

    Raises:
        LaunchError: the host lacks what the job needs, or a model cannot be found.
    """
    folders = find_models(job, run_dir, job_dir)
    fleet = begin(job, run_dir, shared, hosts)
    run_actors(fleet, job, job_dir, folders)
    return fleet


def find_models(job: spec.Job, run_dir: Path, job_dir: Path) -> dict[str, Path]:
    """Return the folder of each service's model, and make those of random models.

    Raises:
        LaunchError: a model cannot be found.
    """
    return {
        name: weights_folder(job, service.model, job_dir, run_dir)
        for name, service in job.with_processes.items()
    }


def begin(
    job: spec.Job, run_dir: Path, shared: dict[str, str], hosts: Hosts | None = None
) -> Fleet:
    """Start the processes of every service, which import their modules. `shared` is added to the
    environment of all of them. `hosts` are the hosts of the run (None: this host only).

    Raises:
        LaunchError: the host lacks what the job needs.
    """
    placements = place(job)
    logs = run_dir / "logs"
    logs.mkdir(exist_ok=True)
    fleet = Fleet(
        samplers={}, trainers={}, rewards={}, hosts=hosts or Hosts(), placements=placements
    )
    for name, service in job.with_processes.items():
        if name in job.samplers:
            fleet.samplers[name] = [
                _begin(fleet, job, name, f"{service.mesh.name}{i}" if i else service.mesh.name,
                       spot, logs, shared)
                for i, spot in enumerate(placements[name])
            ]  # fmt: skip
        else:
            fleet.trainers[name] = _begin(
                fleet, job, name, service.mesh.name, placements[name][0], logs, shared
            )
    _begin_pools(job, fleet, logs, shared)
    return fleet


def run_actors(fleet: Fleet, job: spec.Job, job_dir: Path, folders: dict[str, Path]) -> None:
    """Start the actors in the processes of `begin`. This imports their classes, which takes
    seconds. `folders` are those of `find_models`."""
    fleet.folders |= folders
    _run_pools(job, fleet, job_dir)
    for name in job.with_processes:
        _run_service(fleet, job, name, job_dir)


def _run_service(fleet: Fleet, job: spec.Job, name: str, job_dir: Path) -> None:
    """Start the actors of a service in its processes."""
    from forgedsl_runtime.rendezvous import rendezvous_store

    service, spots = job.services[name], fleet.placements[name]
    actor = kind_of(service).actor(service)
    args = (job, name, str(fleet.folders[name]))
    if name in job.samplers:
        tenants = {each: tenant_adapter(job, each, job_dir) for each in job.tenants(name)}
        others = {"tenants": tenants} if tenants else {}
        for mesh, spot in zip(fleet.samplers[name], spots, strict=True):
            token = secrets.token_hex(4)
            mesh.run(actor, args, {"threads": spot.threads, "token": token, **others})
        return
    world = service.mesh.hosts * service.mesh.procs
    store = rendezvous_store()
    fleet.rendezvous_stores.append(store)
    there = (fleet.hosts.address(), store.port)
    options = {"world": world, "threads": spots[0].threads, "rendezvous": there}
    fleet.trainers[name].run(actor, args, options)


async def setup(
    fleet: Fleet,
    run_dir: Path,
    run_key: str,
    resume: int | None,
    tell: Callable[..., Any],
    warn: Callable[[str, str], object] = lambda service, text: None,
) -> list[dict[str, Any]]:
    """Load models and start engines, all in parallel; call `tell(mesh, seconds, facts)` for each.
    If a process of a generator replica or of a pool dies meanwhile, call `warn(service, text)` and
    start that replica or pool again. Return the proofs of models with random weights.

    Raises:
        RunError: a frozen model has other random weights than its trainer.
    """
    async with asyncio.TaskGroup() as tasks:
        for mesh in fleet.all_meshes():
            folder = fleet.folders.get(mesh.service)
            if mesh in fleet.trainers.values():
                args = (str(run_dir), run_key, resume)
                tasks.create_task(set_up(mesh, args, tell, folder))
            else:
                tasks.create_task(_set_up_replica(fleet, mesh, run_key, tell, warn))
    from forgedsl_runtime.proofs import frozen

    meshes = fleet.trainers.items()
    return frozen.check_random({n: m.random_weights for n, m in meshes if m.random_weights})


async def _set_up_replica(
    fleet: Fleet,
    mesh: Mesh,
    run_key: str,
    tell: Callable[..., Any],
    warn: Callable[[str, str], object],
) -> None:
    """Set up a generator replica or a pool; start it again if one of its processes dies."""
    args = (run_key,) if mesh.service in fleet.samplers else ()
    while True:
        try:
            return await set_up(mesh, args, tell, fleet.folders.get(mesh.service))
        except StartError as error:
            if mesh.deaths >= DEATHS:
                raise
            warn(mesh.service, f"{error}; it is started again")
        dead = mesh
        await dead.abandon()
        mesh = dead.respawn(**_new_token(dead))
        fleet.replace(dead, mesh)


def _new_token(dead: Mesh) -> dict[str, str]:
    """Return the arguments of a generator replica that must differ from those of its earlier
    start."""
    return {"token": secrets.token_hex(4)} if "token" in dead.recipe["kwargs"] else {}


async def restart(dead: Mesh, run_key: str, tell: Callable[..., Any]) -> Mesh:
    """Start a generator replica or a pool again and set it up.

    Raises:
        RunError: it could not start.
    """
    sampler = "token" in dead.recipe["kwargs"]
    fresh: Mesh | None = None
    try:
        fresh = dead.respawn(**_new_token(dead))
        await set_up(fresh, (run_key,) if sampler else (), tell)
    except (RunError, ValueError) as error:  # Monarch raises ValueError if a host does not answer
        if fresh is not None:
            await fresh.abandon()
        if isinstance(error, RunError):
            raise
        words = f"service {dead.service} could not start on host {dead.on.start}: {error}"
        raise RunError(words, origin=dead.origin) from error
    return fresh


async def set_up(
    mesh: Mesh, args: tuple[Any, ...], tell: Callable[..., Any], folder: Path | None = None
) -> None:
    """Wait until a mesh is ready, then call `tell(mesh, seconds, facts)`. If the facts of a frozen
    model have digests of its weights, or of the parts of them that its ranks hold, compare these
    with the files in `folder` first.

    Raises:
        StartError: one of its processes died.
        RunError: it did not start, and the error holds the end of its log; or a frozen model does
            not hold the weights of its folder.
    """
    start = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(SETUP_SECONDS):
            facts = await mesh.first_fail_fast("setup", *args)
            mesh.members = await mesh.call("describe")
    except TimeoutError:
        raise RunError(
            f"service {mesh.service} did not start within {SETUP_SECONDS:.0f} s",
            origin=mesh.origin,
            remedy=mesh.last_words(),
        ) from None
    except ServiceError as error:
        raise (StartError if error.died else RunError)(
            f"service {mesh.service} could not start: {error.failure.message}",
            origin=mesh.origin,
            remedy=mesh.last_words(),
            service=mesh.service if error.died else "",
        ) from error
    digests, held = facts.pop("digests", None), facts.pop("held", None)
    tenants = facts.pop("digests_of", None)
    mesh.random_weights = facts.pop("random_weights", None)
    if folder is not None and (digests is not None or held is not None):
        from forgedsl_runtime.proofs import frozen

        try:
            if digests is not None:
                proof = await asyncio.to_thread(frozen.check, folder, digests)
            else:
                proof = await asyncio.to_thread(frozen.check_parts, folder, held)
        except RunError as error:
            words = f"service {mesh.service} could not start: {error}"
            raise RunError(words, origin=mesh.origin, remedy=error.remedy) from error
        if tenants is None:
            facts["frozen"] = proof.record(mesh.service)
        else:
            facts["tenants"] = [proof.record(tenant) for tenant in tenants]
    tell(mesh, asyncio.get_running_loop().time() - start, facts)


def place(job: spec.Job) -> dict[str, list[Placement]]:
    """Return the threads and GPUs of every replica of every service. The plan has chosen the GPUs.

    Raises:
        LaunchError: the plan needs GPUs that this host does not have.
    """
    services = job.services.values()
    launcher = registry.launcher(job.launcher.kind)
    here = launcher.one_machine
    busy = sum(
        s.mesh.procs * s.mesh.replicas * (s.mesh.hosts if here else 1)
        for name, s in job.with_processes.items()  # frozen models are mostly idle beside samplers
        if not (job.samplers and name in job.trainers and not s.trained)
    )
    threads = max(1, (os.cpu_count() or 1) // max(1, busy))
    width = max((1 + g for s in services for spot in s.mesh.places for g in spot.gpus), default=0)
    apart = width if launcher.splits else 0
    found: dict[str, list[Placement]] = {}
    for name, service in job.with_processes.items():
        mesh = service.mesh
        gpus = {spot.replica: spot.gpus for spot in mesh.places}
        found[name] = [
            Placement(
                threads=mesh.cpus or threads,
                gpus=tuple(host * apart + gpu for host in (hosts if apart else hosts[:1])
                           for gpu in gpus.get(replica, ())),
                hosts=hosts,
            )
            for replica in range(mesh.replicas)
            for hosts in (hosts_of(mesh, replica),)
        ]  # fmt: skip
    needed = {gpu for spots in found.values() for spot in spots for gpu in spot.gpus}
    if needed and (available := _num_gpus()) <= max(needed):
        raise LaunchError(
            f"the job uses GPUs 0 to {max(needed)} of this host, but it has "
            f"{available}{_masked()}; choose a profile for this host, or `device = cpu`"
        )
    return found


def _begin(
    fleet: Fleet,
    job: spec.Job,
    name: str,
    mesh_name: str,
    spot: Placement,
    logs: Path,
    shared: dict[str, str],
) -> Mesh:
    """Start the processes of a service, or of a replica of it."""
    service = job.services[name]
    mesh = service.mesh
    environment = _environment(spot) | {"FORGEDSL_ACTOR": mesh_name} | shared
    load = partial(load_kind, service.kind)
    return Mesh.begin(
        service=name, origin=job.origins.get(name, ""), name=mesh_name, size=mesh.procs,
        start=bootstrap(environment, logs / mesh_name, mesh.device, load), logs=logs / mesh_name,
        hosts=fleet.hosts.attach(spot.hosts), on=spot.hosts, end=fleet.hosts.kill,
        on_gpus=bool(spot.gpus),
    )  # fmt: skip


def _begin_pools(job: spec.Job, fleet: Fleet, logs: Path, shared: dict[str, str]) -> None:
    """Start the processes of one mesh for all pure rewards, and of one for each Python reward,
    endpoint and environment."""
    on = range(job.launcher.pools, job.launcher.pools + 1)
    environment = _environment(Placement(threads=1, gpus=())) | shared

    def begin(service: str, origin: str, name: str, size: int) -> Mesh:
        return Mesh.begin(
            service=service, origin=origin, name=name, size=size,
            start=bootstrap(environment, logs / name, "cpu"), logs=logs / name,
            hosts=fleet.hosts.attach(on), on=on, end=fleet.hosts.kill,
        )  # fmt: skip

    pure = tuple(name for name, reward in job.rewards.items() if reward.is_pure)
    if pure:
        size = max(job.rewards[name].procs for name in pure)
        service = pure[0] if len(pure) == 1 else POOL
        fleet.rewards |= dict.fromkeys(
            pure, begin(service, job.origins.get(pure[0], ""), POOL, size)
        )
    for name, reward in job.rewards.items():
        if reward.is_alone:
            origin = job.origins.get(name, "")
            fleet.rewards[name] = begin(name, origin, f"reward_{name}", reward.procs)
    for name, played in job.environments.items():
        mesh_name = "environment_" + name.replace(".", "_")
        fleet.environments[name] = begin(name, job.origins.get(name, ""), mesh_name, played.procs)


def _run_pools(job: spec.Job, fleet: Fleet, job_dir: Path) -> None:
    """Start the actors of rewards and environments in their processes."""
    from forgedsl_runtime.actors.environment import EnvironmentPool
    from forgedsl_runtime.actors.reward import RewardPool

    meshes = {id(mesh): mesh for mesh in fleet.rewards.values()}
    for key, mesh in meshes.items():
        names = tuple(name for name, of in fleet.rewards.items() if id(of) == key)
        mesh.run(RewardPool, (job, names, str(job_dir)), {})
    for name, mesh in fleet.environments.items():
        mesh.run(EnvironmentPool, (job, name, str(job_dir)), {})


SAME_BITS = "AUTO,STRICT"
"""MKL_CBWR of all processes: a row of a product has the same bits whatever the number of rows.
Without it, MKL's AVX2 code gives other bits for another number of rows. A log-prob would then
depend on the other samples of its batch, and two runs with one seed would differ."""


def _environment(spot: Placement) -> dict[str, str]:
    return {
        "MKL_CBWR": os.environ.get("MKL_CBWR", SAME_BITS),
        "OMP_NUM_THREADS": str(spot.threads),
        "CUDA_VISIBLE_DEVICES": ",".join(visible_devices(spot.gpus)),
        "TOKENIZERS_PARALLELISM": "false",
        "FORGEDSL_ACTOR": "1",
    }


def visible_devices(gpus: tuple[int, ...]) -> list[str]:
    """Map GPU numbers of the plan to entries of this process's CUDA_VISIBLE_DEVICES."""
    mask = gpu_mask()
    return [str(gpu) if mask is None else mask[gpu] for gpu in gpus]


def _masked() -> str:
    mask = gpu_mask()
    return "" if mask is None else f" (CUDA_VISIBLE_DEVICES={','.join(mask)})"


def _num_gpus() -> int:
    """Return the number of GPUs that this process may use. nvidia-smi is asked first, since torch
    takes seconds to import."""
    if found := len(detect_gpus()):
        return found
    import torch

    return torch.cuda.device_count()
