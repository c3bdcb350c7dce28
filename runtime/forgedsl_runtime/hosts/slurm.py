"""Launcher `slurm`: the nodes of the allocation that this process runs in.

    start --srun, one step a node--> a worker that prints its address (remote.py)

Outside of an allocation, `forgec run` submits itself (cli/submit.py); this module runs inside. A
step ends when its node fails, when this process ends (Slurm then ends all steps of the batch
script), or when `stop` is called.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl_runtime.hosts.addresses import ADDRESS
from forgedsl_runtime.hosts.remote import WORKER, RemoteHosts


class SlurmHosts(RemoteHosts):
    """Each host is a step of the job, on a node of its own. A single host is this node."""

    last = signal.SIGTERM  # srun forwards this signal
    container: tuple[str, ...] = ()
    """prefix that runs a command in the container of this process"""

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        if count == 1:
            return
        self.container = tuple(shlex.split(settings.get("container") or ""))
        nodes = nodes_of(os.environ["SLURM_JOB_NODELIST"])
        if len(nodes) < count:
            raise LaunchError(
                f"the plan uses {count} hosts, but the allocation {os.environ['SLURM_JOB_ID']} "
                f"has {len(nodes)}: submit it with --nodes={count}, as `forgec run` does"
            )
        self.start_workers(nodes[:count], logs)

    def worker(self, name: str, address: str, path: Path) -> list[str]:
        """Return the command of a step that has all cores and GPUs of the node."""
        cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
        bound = [f"--cpus-per-task={cores}", "--cpu-bind=none", f"--export=ALL,{ADDRESS}={address}"]
        return [
            *self.run_prefix(name),
            *bound,
            *self.container,
            sys.executable,
            "-c",
            WORKER,
            str(path),
        ]

    def run_prefix(self, name: str) -> list[str]:
        return ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}", "--mem=0"]


def nodes_of(names: str) -> list[tuple[str, str]]:
    """Return (name, address) of each node of an allocation; the address is the one Slurm uses."""
    found = []
    for name in _output_of("scontrol", "show", "hostnames", names).split():
        match = re.search(r"NodeAddr=(\S+)", _output_of("scontrol", "-o", "show", "node", name))
        found.append((name, match[1] if match else name))
    return found


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
