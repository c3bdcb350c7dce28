"""Open the services of a job without its controller, for callers that use them in any order.

    Job, RUN --open_services--> Services (endpoints, events, version of each trainer) --close-->

Only the controller schedules groups, bounds policy age and resumes a run; nothing here does.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psutil import Process

from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.runs import write_report
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.launch import kill_children
from forgedsl_runtime.meshes import Fleet
from forgedsl_runtime.readers import close_readers, open_readers
from forgedsl_runtime.service_backend import Run
from forgedsl_runtime.services.endpoints import MonarchEndpoints
from forgedsl_runtime.services.real_backend import RealBackend
from forgedsl_runtime.services.supervisor import Supervisor
from forgedsl_runtime.stderr import native_stderr
from forgedsl_runtime.temporary_files import Scratch
from forgedsl_runtime.tracebacks import described

OPENING = threading.Lock()
"""held while services are opened: each opening redirects standard error of the whole process"""


@dataclass(slots=True, kw_only=True)
class Services:
    """Open services; all calls are made on the loop that opened them."""

    this: Run
    ask: MonarchEndpoints
    fleet: Fleet
    supervisor: Supervisor
    readers: list[Any]

    def check(self) -> None:
        """Report services that failed between two calls.

        Raises:
            RunError: a service has failed for good.
        """
        if not self.ask.failures.empty():
            found = self.ask.failures.get_nowait()
            self.ask.failures.put_nowait(found)  # keep the failure for the next check
            raise RunError(found.message, origin=found.origin, service=found.service)

    async def close(self, code: int, status: str, message: str) -> None:
        """Stop all processes and write the report."""
        self.supervisor.close()
        await self.ask.close()
        meshes = list(self.fleet.all_meshes())
        ended = await asyncio.gather(*(mesh.stop() for mesh in meshes), return_exceptions=True)
        events = self.this.events
        for mesh, error in zip(meshes, ended, strict=True):
            if isinstance(error, BaseException):
                text = f"did not stop in time and was killed: {described(error):.200}"
                events.emit("warning", service=mesh.service, text=text)
        self.fleet.hosts.stop()
        self.this.scratch.close()
        events.emit("run.end", code=code, status=status, message=message, seconds=0.0)
        close_readers(self.readers)
        events.close()
        write_report(self.this.run_dir)


async def open_services(job: spec.Job, run_dir: Path) -> Services:
    """Start all services of the job in `run_dir`, which holds its inputs."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    await asyncio.to_thread(OPENING.acquire)
    try:
        with native_stderr(run_dir / "logs" / "controller.log"):
            return await _start_services(job, run_dir.resolve())
    finally:
        OPENING.release()


async def _start_services(job: spec.Job, run_dir: Path) -> Services:
    backend, scratch = RealBackend(), Scratch()
    with ExitStack() as undo:
        undo.callback(scratch.close)
        events = EventLog(run_dir / "events.jsonl")
        undo.callback(events.close)
        readers = open_readers(job, run_dir, quiet=True)
        undo.callback(close_readers, readers)
        for reader in readers:
            events.subscribe(reader.on_event)
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        this = Run(
            job=_loading_folders(job), run_dir=run_dir, job_dir=run_dir, resume=None, events=events,
            record_batches=0, backend=backend, scratch=scratch, clean_up=nothing,
        )  # fmt: skip
        events.emit(
            "run.start", name=job.name, steps=None, profile=job.profile,
            content_hash=job.content_hash, run_dir=run_dir.name, resumed_from=None, recorded=0,
        )  # fmt: skip
        undo.callback(kill_children, frozenset(child.pid for child in Process().children()))
        fleet = backend.spawn(this)
        undo.callback(fleet.hosts.stop)
        data = await backend.prepare(this, fleet)
        ask = await backend.connect(this, fleet, data)
        undo.pop_all()
    supervisor = Supervisor(fleet, ask, events, lambda dead: backend.restart(this, dead))
    supervisor.start()
    return Services(this=this, ask=ask, fleet=fleet, supervisor=supervisor, readers=readers)


def _loading_folders(job: spec.Job) -> spec.Job:
    """Return the job without the proof `start`. With this proof, engines begin with random weights
    and wait for the first publication. The code of a session may sample before it publishes, so
    its engines must load the weights in their model's folder."""
    off = {"start": "a Session publishes when its code says so", **job.proofs.off}
    return job.model_copy(update={"proofs": spec.Proofs(off=off)})
