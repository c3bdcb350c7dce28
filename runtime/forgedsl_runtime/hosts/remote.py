"""Hosts on other machines: a worker on each prints the address at which it listens.

start_workers(nodes) --command(node), by srun or ssh--> workers --> attach, lost_hosts, stop
"""

from __future__ import annotations

import re
import subprocess
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl_runtime.hosts.addresses import ADDRESS, LOOPBACK, address_reachable_from
from forgedsl_runtime.hosts.process import ProcessHosts
from forgedsl_runtime.upstream.monarch import attach_hosts, this_host

START_SECONDS = 180.0
STOP_SECONDS = 10.0
LISTENS = re.compile(r"^listens at (tcp://\S+)$", re.MULTILINE)
WORKER = f"""
import os, socket, sys
absent = [path for path in sys.argv[1:] if not os.path.exists(path)]
if absent:
    sys.exit("not on this host: " + ", ".join(absent) + " (the run folder, models and data have to "
             "be on a file system that all hosts see)")
from monarch.actor import run_worker_loop_forever
with socket.socket() as free:
    free.bind((os.environ["{ADDRESS}"], 0))
    address = "tcp://%s:%d" % free.getsockname()
print("listens at", address, flush=True)
run_worker_loop_forever(address=address, ca="trust_all_connections")
"""


class RemoteHosts(ProcessHosts):
    """Base of launchers that start a worker on each node with a program such as srun or ssh. A run
    on one host may need no worker."""

    nodes: Sequence[tuple[str, str]] = ()
    """(name, address) of each node"""
    _controller_address = LOOPBACK

    @abstractmethod
    def worker(self, name: str, address: str, path: Path) -> list[str]:
        """Return the command that runs WORKER on a node, with `path` as its argument: WORKER fails
        if the node does not have that path. The command ends when WORKER ends."""

    @abstractmethod
    def run_prefix(self, name: str) -> list[str]:
        """Return the prefix of a command that runs on a node."""

    def start_workers(self, nodes: Sequence[tuple[str, str]], logs: Path) -> None:
        """Start a worker on each node and attach them.

        Raises:
            LaunchError: one does not start; with its output.
        """
        logs.mkdir(exist_ok=True)
        self.nodes, self.count = nodes, len(nodes)
        files = [logs / f"host{index}.log" for index in range(self.count)]
        begins = [file.stat().st_size if file.exists() else 0 for file in files]
        self.workers = [
            self.start_host(self.worker(name, address, logs), file)
            for (name, address), file in zip(nodes, files, strict=True)
        ]
        addresses = self._wait_for_workers(files, begins)
        self._controller_address = address_reachable_from(nodes[0][1])
        self._all = attach_hosts(addresses, at=self._controller_address)

    def address(self) -> str:
        return self._controller_address

    def attach(self, which: range) -> Any:
        return super().attach(which) if self.workers else this_host()

    def kill(self, on: range, pids: Sequence[int]) -> None:
        if not self.workers:
            super(ProcessHosts, self).kill(on, pids)
            return
        for index in set(on) - set(self.lost_hosts()):  # a lost host does not answer
            words = ("kill", "-9", *map(str, pids))
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [*self.run_prefix(self.nodes[index][0]), *words],
                    capture_output=True, check=False,
                    stdin=subprocess.DEVNULL, timeout=STOP_SECONDS,
                )  # fmt: skip

    def stop(self) -> None:
        for worker in self.workers:
            worker.terminate()  # srun or ssh forwards the signal
        for worker in self.workers:
            try:
                worker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                worker.kill()

    def _wait_for_workers(self, files: Sequence[Path], begins: Sequence[int]) -> list[str]:
        """Wait until all workers listen; return their addresses.

        Raises:
            LaunchError: one has ended or is late.
        """
        end = time.monotonic() + START_SECONDS
        while True:
            texts = [f.read_text(errors="replace")[b:] for f, b in zip(files, begins, strict=True)]
            found = [LISTENS.search(text) for text in texts]
            if all(found):
                return [match[1] for match in found if match is not None]
            ended = self.lost_hosts()
            if ended or time.monotonic() > end:
                late = next((i for i, match in enumerate(found) if match is None), 0)
                index = next(iter(ended), late)
                why = ended.get(index, f"nothing listens there after {START_SECONDS:.0f} s")
                self.stop()
                said = files[index].read_text(errors="replace")[begins[index] :]
                raise LaunchError(
                    f"host {index} ({self.nodes[index][0]}) did not start: {why}\n{files[index]} "
                    f"ends with:\n{said[-2000:]}"
                )
            time.sleep(0.1)
