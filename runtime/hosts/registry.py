"""What carries each launcher out, in one tuple."""

from __future__ import annotations

from pathlib import Path

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.runtime.hosts.base import Hosts

HOSTS: tuple[tuple[str, type[Hosts]], ...] = (
    ("local", Hosts),
    ("slurm", Hosts),  # it has started us on the host
    ("kubernetes", Hosts),
)


def started(job: spec.Job, run_dir: Path) -> Hosts:
    """The hosts of a run, started by its launcher.

    Raises:
        LaunchError: there is no such launcher, or it cannot start them.
    """
    launcher = job.launcher
    for name, found in HOSTS:
        if name == launcher.kind:
            hosts = found()
            hosts.start(num_hosts(job), launcher.args, run_dir / "logs")
            return hosts
    names = ", ".join(name for name, _ in HOSTS)
    raise LaunchError(f"this version starts nothing by `launcher = {launcher.kind}`; {names} work")


def num_hosts(job: spec.Job) -> int:
    """How many hosts the plan uses."""
    meshes = [service.mesh for service in job.services.values()]
    return max([1, *(m.hosts for m in meshes), *(p.host + 1 for m in meshes for p in m.places)])
