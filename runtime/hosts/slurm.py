"""Launcher `slurm`: the nodes of the allocation that this process runs in.

    start --srun, one step a node--> a worker that says where it listens --> attach, lost, stop

`forgec run` outside of an allocation submits itself (cli/submit.py) and comes here inside. A step
ends with its node, with this process (Slurm ends all steps with the batch script), or by `stop`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.runtime.hosts.addresses import ADDRESS, LOOPBACK, towards
from forgedsl.runtime.hosts.process import ProcessHosts
from forgedsl.runtime.upstream.monarch import attach_hosts, this_host

START_SECONDS = 180.0
STOP_SECONDS = 10.0
LISTENS = re.compile(r"^listens at (tcp://\S+)$", re.MULTILINE)
WORKER = """
import os, socket
from monarch.actor import run_worker_loop_forever
with socket.socket() as free:
    free.bind((os.environ["FORGEDSL_ADDRESS"], 0))
    address = "tcp://%s:%d" % free.getsockname()
print("listens at", address, flush=True)
run_worker_loop_forever(address=address, ca="trust_all_connections")
"""


class SlurmHosts(ProcessHosts):
    """Each host is a step of the job, on a node of its own; a single one is this node."""

    _towards = LOOPBACK

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        if count == 1:
            return
        self.nodes = nodes_of(os.environ["SLURM_JOB_NODELIST"])
        if len(self.nodes) < count:
            raise LaunchError(
                f"the plan uses {count} hosts, and the allocation {os.environ['SLURM_JOB_ID']} has "
                f"{len(self.nodes)}: submit it with --nodes={count}, as `forgec run` does"
            )
        logs.mkdir(exist_ok=True)
        self.count = count
        files = [logs / f"host{index}.log" for index in range(count)]
        begins = [file.stat().st_size if file.exists() else 0 for file in files]
        self.workers = [
            self.begin(step(name, address), file)
            for (name, address), file in zip(self.nodes[:count], files, strict=True)
        ]
        addresses = self._listening(files, begins)
        self._towards = towards(self.nodes[0][1])
        self._all = attach_hosts(addresses, at=self._towards)

    def address(self) -> str:
        return self._towards

    def attach(self, which: range) -> Any:
        return super().attach(which) if self.workers else this_host()

    def kill(self, on: range, pids: Sequence[int]) -> None:
        if not self.workers:
            super().kill(on, pids)
            return
        for index in set(on) - set(self.lost()):  # elsewhere a number may be another's
            words = ("kill", "-9", *map(str, pids))
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*srun(self.nodes[index][0]), *words], capture_output=True, check=False,
                    timeout=STOP_SECONDS,
                )  # fmt: skip

    def stop(self) -> None:
        for worker in self.workers:
            worker.terminate()  # srun passes it on
        for worker in self.workers:
            try:
                worker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                worker.kill()

    def _listening(self, files: Sequence[Path], begins: Sequence[int]) -> list[str]:
        """Where each worker listens, as soon as all have said so."""
        end = time.monotonic() + START_SECONDS
        while True:
            texts = [f.read_text(errors="replace")[b:] for f, b in zip(files, begins, strict=True)]
            found = [LISTENS.search(text) for text in texts]
            if all(found):
                return [match[1] for match in found if match is not None]
            ended = self.lost()
            if ended or time.monotonic() > end:
                late = next((i for i, match in enumerate(found) if match is None), 0)
                index = next(iter(ended), late)
                why = ended.get(index, f"nothing listens there after {START_SECONDS:.0f} s")
                self.stop()
                raise LaunchError(
                    f"host {index} ({self.nodes[index][0]}) did not start: {why}\n{files[index]} "
                    f"ends with:\n{texts[index][-2000:]}"
                )
            time.sleep(0.1)


def nodes_of(names: str) -> list[tuple[str, str]]:
    """(name, address) of each node of an allocation; the address that Slurm itself uses."""
    found = []
    for name in _said("scontrol", "show", "hostnames", names).split():
        match = re.search(r"NodeAddr=(\S+)", _said("scontrol", "-o", "show", "node", name))
        found.append((name, match[1] if match else name))
    return found


def srun(node: str) -> list[str]:
    """What runs beside everything else of the job on a node."""
    return ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0"]


def step(node: str, address: str) -> list[str]:
    """The worker on a node, which has all of its cores and GPUs."""
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    bound = [f"--cpus-per-task={cores}", "--cpu-bind=none", f"--export=ALL,{ADDRESS}={address}"]
    return [*srun(node), *bound, sys.executable, "-c", WORKER]


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
