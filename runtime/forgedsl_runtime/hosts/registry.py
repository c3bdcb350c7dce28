"""Table of all launchers."""

from __future__ import annotations

from pathlib import Path

from forgedsl.errors import LaunchError
from forgedsl.launchers.registry import carrier
from forgedsl.lower import job as spec
from forgedsl.lower.hosts import num_hosts
from forgedsl_runtime.hosts.base import Hosts
from forgedsl_runtime.hosts.kubernetes import PodHosts
from forgedsl_runtime.hosts.process import ProcessHosts
from forgedsl_runtime.hosts.slurm import SlurmHosts
from forgedsl_runtime.hosts.ssh import SshHosts

HOSTS: tuple[tuple[str, type[Hosts]], ...] = (
    ("local", Hosts),
    ("process", ProcessHosts),
    ("slurm", SlurmHosts),
    ("ssh", SshHosts),
    ("kubernetes", PodHosts),
)


def start_hosts(job: spec.Job, temp: Path, logs: Path) -> Hosts:
    """Start the hosts of a run with its launcher and return them.

    Raises:
        LaunchError: there is no such launcher, or it cannot start them.
    """
    kind, known = carrier(job.launcher.kind).name, dict(HOSTS)
    if kind not in known:
        raise LaunchError(f"`launcher = {kind}` is not known; there are {', '.join(known)}")
    hosts = known[kind]()
    hosts.start(num_hosts(job), job.launcher.args, temp, logs)
    return hosts
