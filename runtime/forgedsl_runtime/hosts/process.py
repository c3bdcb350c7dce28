"""Launcher `process`: Monarch workers on this machine; each counts as a host.

    start --> a worker for each host, listening in the run's own folder --> attach, lost_hosts, stop

No port is used, and other users cannot reach the workers: the folder is private. A worker ends with
the run, also if the run is killed, and the processes spawned on it end with the worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from forgedsl_runtime.hosts.base import Hosts
from forgedsl_runtime.upstream.monarch import attach_hosts

TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]))  # PR_SET_PDEATHSIG
os.getppid() == int(sys.argv[2]) or sys.exit()  # the parent has already ended
os.execvp(sys.argv[3], sys.argv[3:])
"""
WORKER = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""


class ProcessHosts(Hosts):
    """Each host is a worker process on this machine."""

    workers: Sequence[subprocess.Popen[bytes]] = ()
    stdin = subprocess.DEVNULL
    """standard input of the command that starts a worker"""
    last: ClassVar[signal.Signals] = signal.SIGKILL
    """signal that the kernel sends to this command when the thread that started it ends. SIGKILL
    also ends a command that was stopped with SIGSTOP."""

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        logs.mkdir(exist_ok=True)
        self.count = count
        addresses = [f"ipc://{temp}/host{index}" for index in range(count)]
        self.workers = [
            self.start_host([sys.executable, "-c", WORKER, address], logs / f"host{index}.log")
            for index, address in enumerate(addresses)
        ]
        self._all = attach_hosts(addresses)

    @classmethod
    def start_host(cls, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start the command that serves as a host; it ends with this process."""
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-c", TIED, str(int(cls.last)), str(os.getpid()), *command],
                stdin=cls.stdin, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    def attach(self, which: range) -> Any:
        return self._all.slice(hosts=slice(which.start, which.stop))

    def lost_hosts(self) -> dict[int, str]:
        return {
            index: f"its process {worker.pid} ended with exit code {worker.returncode}"
            for index, worker in enumerate(self.workers)
            if worker.poll() is not None
        }

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()
