"""One execution of a job, and the backend of its services: real, or a rehearsal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from forgedsl import transports
from forgedsl.errors import LaunchError
from forgedsl.launchers import registry
from forgedsl.lower import job as spec
from forgedsl.lower.hosts import num_hosts
from forgedsl.schema import SERVICES
from forgedsl.types.flow import Role
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.temporary_files import Scratch

Trial = Callable[[Path], Sequence[tuple[str, str]]]
"""calls user code of a job once; its files are in the folder. It returns what it has to say, as
events: `warning` or `note`, and the text. It raises `UserCodeError` if the code cannot work."""


class ServiceBackend(Protocol):
    """Backend of the services: models and engines, or the latencies of a rehearsal."""

    loads_models: bool
    """False in a rehearsal, whose processes hold nothing"""

    def spawn(self, this: Run) -> Any:
        """Start the processes of all meshes; return their fleet."""

    async def prepare(self, this: Run, fleet: Any) -> Any:
        """Call user code once, start the actors, set up the meshes and open the data meanwhile;
        return the data."""

    async def connect(self, this: Run, fleet: Any, data: Any) -> Any:
        """Return the endpoints."""

    async def restart(self, this: Run, dead: Any) -> Any:
        """Start a new mesh in place of a dead replica."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution of a job in a run folder."""

    job: spec.Job
    run_dir: Path
    job_dir: Path
    events: EventLog
    resume: int | None
    record_batches: int
    backend: ServiceBackend
    scratch: Scratch
    clean_up: Callable[[], None]
    """kills every process of the run and removes its files outside of the run folder"""
    changed_data: bool = False
    """a resumed run reads other data than before, which the user has allowed"""
    trial: Trial | None = None
    """called while processes start"""
    frozen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by service: the proof that a frozen model holds the weights of its folder, or the random ones
    of its trainer"""

    def tell(self, mesh: Any, seconds: float, facts: dict[str, Any]) -> None:
        """Report that a mesh and its processes are ready."""
        if "frozen" in facts:
            self.frozen[mesh.service] = facts["frozen"]
        self.frozen |= {line["service"]: line for line in facts.get("tenants", ())}
        self.events.emit(
            "service.ready", service=mesh.service, mesh=mesh.name, seconds=round(seconds, 3),
            facts=facts,
        )  # fmt: skip
        for member in mesh.members:
            self.events.emit("process.start", service=mesh.service, mesh=mesh.name, **member)


def check_supported(job: spec.Job) -> None:
    """Reject settings that a job may have but this runtime does not support.

    Raises:
        LaunchError: the job needs something unsupported, such as more hosts than its launcher
            has, or a setting beyond the `support` limits of a service.
    """
    _check_hosts(job)
    roles = frozenset[Role]().union(*(node.roles for node in job.nodes))
    for name, service in job.services.items():
        for limit in SERVICES[service.kind].support:
            name_in_job = limit.setting.removeprefix("memory.").removeprefix("engine.")
            value = attrgetter(name_in_job)(service)
            other = attrgetter(limit.beside)(service) if limit.beside else None
            head = getattr(service, "value_head", False)
            device = service.mesh.device if limit.device else ""
            if limit.exceeded(value, roles, head=head, beside=other, device=device):
                pair = f" together with {limit.beside}" if limit.beside else ""
                raise LaunchError(
                    f"{job.origins.get(name, '')}: {limit.setting} = {value} of {name} is not "
                    f"supported by this version{pair}; {limit.instead}"
                )
    for name, trainer in job.trainers.items():
        other = job.trainers.get(trainer.served_by or name)
        if trainer.served_by and (other is None or other.lora is None):
            raise LaunchError(
                f"{job.origins.get(name, '')}: {name} cannot be served by {trainer.served_by}, "
                "which trains no adapter"
            )
    for name, sampler in job.samplers.items():
        engine = job.samplers.get(sampler.served_by or name)
        if engine is None or (sampler.served_by and not getattr(engine, "adapter_rank", None)):
            raise LaunchError(
                f"{job.origins.get(name, '')}: {name} cannot be served by {sampler.served_by}, "
                "which has no engine that an adapter is published to"
            )
    for node in job.nodes:
        if Role.TRANSFERS in node.roles and node.transport not in transports.NAMES:
            raise LaunchError(
                f"{node.origin}: this version has no transport {node.transport}; it has "
                + " and ".join(transports.NAMES)
            )


def _check_hosts(job: spec.Job) -> None:
    try:
        facts = registry.carrier(job.launcher.kind)
    except LookupError as error:
        raise LaunchError(f"{error}") from error
    hosts = num_hosts(job)
    if facts.max_hosts is not None and hosts > facts.max_hosts:
        raise LaunchError(
            f"the plan uses {hosts} hosts, but launcher {facts.name} starts processes on one host "
            "only; choose a profile with another launcher, or one that fits on one host"
        )
    if facts.allocation and not os.environ.get(facts.allocation):
        emit = facts.manifest.emit if facts.manifest is not None else ""
        remedy = f"`forgec build FILE -o DIR --emit {emit}` writes a script to submit, or "
        why = (
            f"a run must start inside an allocation of the scheduler ({facts.allocation} is not "
            "set)"
        )
        if facts.submit:
            why = f"the command `{facts.submit}` is not installed here"
        raise LaunchError(
            f"launcher {facts.name}: {why}; {remedy if emit else ''}choose a profile with "
            "`launcher = local`"
        )
