"""Sample the resources that a run uses on this host: memory of its processes, memory and load of
its GPUs.

    process.start events --on_event--> pids by service --watch--> usage events, every few seconds

Memory is the resident set size of a process and its children; shared pages count in each of them.
GPUs are queried through nvidia-smi, which comes with their driver. If the run has several hosts,
only the first is sampled, since processes on other hosts are not descendants of this one.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import suppress
from typing import Any

import psutil

from forgedsl.plan.host import gpu_mask
from forgedsl_runtime.events import Event, EventLog

EVERY = 10.0
"""seconds between two samples"""
MIB = 2**20
QUERY = ("--query-gpu=index,uuid,memory.used,utilization.gpu", "--format=csv,noheader,nounits")
SECONDS = 5.0
"""time that nvidia-smi has to answer"""


class Usage:
    """Emits usage events while `watch` runs; `gpus`: services of the run are on GPUs."""

    kinds = frozenset(("process.start",))

    def __init__(self, events: EventLog, *, gpus: bool) -> None:
        self._events = events
        self._smi = shutil.which("nvidia-smi") if gpus else None
        self._service_by_pid: dict[int, str] = {}
        events.subscribe(self.on_event)

    def on_event(self, event: Event) -> None:
        if event["kind"] == "process.start":
            self._service_by_pid[event["pid"]] = event["service"]

    async def watch(self) -> None:
        """Emit a sample now and every few seconds, until cancelled."""
        while True:
            memory, gpus = await asyncio.to_thread(lambda: (self.memory(), self.gpus()))
            self._events.emit("usage", memory=memory, gpus=gpus)
            await asyncio.sleep(EVERY)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the processes of each service."""
        found: dict[str, int] = {}
        for process in psutil.Process().children(recursive=True):
            service = self._service_by_pid.get(process.pid)
            if service is None:
                continue
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                for each in (process, *process.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        found[service] = found.get(service, 0) + each.memory_info().rss
        return found

    def gpus(self) -> list[dict[str, Any]]:
        """Return index, bytes and load of each GPU that this run may use; none without an
        answer."""
        if self._smi is None:
            return []
        try:
            done = subprocess.run(
                [self._smi, *QUERY], capture_output=True, text=True, timeout=SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return []
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        mask = gpu_mask()
        return [
            {"index": int(index), "memory": int(used) * MIB, "load": int(load) / 100}
            for index, uuid, used, load in (row for row in rows if len(row) == 4)
            if (mask is None or index in mask or any(uuid.startswith(word) for word in mask))
            and used.isdigit() and load.isdigit()  # nvidia-smi reports no load for a MIG device
        ]  # fmt: skip
