"""What carries each launcher out, in one tuple."""

from __future__ import annotations

from pathlib import Path

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.runtime.hosts.base import Hosts
from forgedsl.runtime.hosts.process import ProcessHosts

HOSTS: tuple[tuple[str, type[Hosts]], ...] = (
    ("local", Hosts),
    ("process", ProcessHosts),
    ("slurm", Hosts),  # it has started us on the host
    ("kubernetes", Hosts),
)


def started(job: spec.Job, temp: Path, logs: Path) -> Hosts:
    """The hosts of a run, started by its launcher.

    Raises:
        LaunchError: there is no such launcher, or it cannot start them.
    """
    kind, known = job.launcher.kind, dict(HOSTS)
    if kind not in known:
        raise LaunchError(f"nothing carries `launcher = {kind}` out; {', '.join(known)} work")
    hosts = known[kind]()
    hosts.start(num_hosts(job), job.launcher.args, temp, logs)
    return hosts


def num_hosts(job: spec.Job) -> int:
    """How many hosts the plan uses."""
    meshes = [service.mesh for service in job.services.values()]
    return max([1, *(m.hosts for m in meshes), *(p.host + 1 for m in meshes for p in m.places)])
