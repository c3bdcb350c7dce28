"""Launcher `process`: workers of Monarch on this machine, each a host that is reached by address.

    start --> a worker for each host, listening in the run's own folder --> attach, lost, stop

No port is used, and nobody else can reach them: the folder is the user's alone. A worker ends with
the run, also where the run is killed, and what was spawned on it ends with the worker.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.runtime.hosts.base import Hosts
from forgedsl.runtime.upstream.monarch import attach_hosts

WORKER = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""


class ProcessHosts(Hosts):
    """Each host is a process."""

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        logs.mkdir(exist_ok=True)
        addresses = [f"ipc://{temp}/host{index}" for index in range(count)]
        self.workers = [self._worker(address, logs) for address in addresses]
        self._all = attach_hosts(addresses)

    def _worker(self, address: str, logs: Path) -> subprocess.Popen[bytes]:
        with (logs / f"{Path(address).name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", WORKER, address], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def attach(self, which: range) -> Any:
        return self._all.slice(hosts=slice(which.start, which.stop))

    def lost(self) -> dict[int, str]:
        return {
            index: f"its process {worker.pid} ended with {worker.returncode}"
            for index, worker in enumerate(self.workers)
            if worker.poll() is not None
        }

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
