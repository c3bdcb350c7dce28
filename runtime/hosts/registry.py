"""What carries each launcher out, in one tuple."""

from __future__ import annotations

from pathlib import Path

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.runtime.hosts.base import Hosts
from forgedsl.runtime.hosts.process import ProcessHosts
from forgedsl.runtime.hosts.slurm import SlurmHosts
from forgedsl.runtime.hosts.ssh import SshHosts

HOSTS: tuple[tuple[str, type[Hosts]], ...] = (
    ("local", Hosts),
    ("process", ProcessHosts),
    ("slurm", SlurmHosts),
    ("ssh", SshHosts),
    ("kubernetes", Hosts),  # it has started us on the host
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
    used = [hosts_of(mesh, replica).stop for mesh in meshes for replica in range(mesh.replicas)]
    return max(job.launcher.pools + 1, *used)


def hosts_of(mesh: spec.Mesh, replica: int = 0) -> range:
    """The hosts of a replica, side by side; the first ones where the plan has not placed it."""
    first = min((p.host for p in mesh.places if p.replica == replica), default=0)
    return range(first, first + mesh.hosts)
