"""State that all parts of one run share: the job and its flow, the services, and live counters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from forgedsl.lower.job import Job
from forgedsl_runtime.endpoints import Endpoints
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.guards import FailureGuard
from forgedsl_runtime.proofs.watch import Proofs
from forgedsl_runtime.recorded.write import Recorder
from forgedsl_runtime.state import ControllerState
from forgedsl_runtime.step_metrics import Meter
from forgedsl_runtime.versions import Versions


class Pulse:
    """Broadcast wake-up: `fire` wakes all waiters, and each checks its own condition again."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def fire(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    async def wait(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    job: Job
    flow: Flow
    endpoints: Endpoints
    events: EventLog
    state: ControllerState
    versions: Versions
    failures: FailureGuard
    proofs: Proofs
    recorder: Recorder | None = None
    changed_data: bool = False
    """the data differ from those of the checkpoint, and the user allowed that"""
    meter: Meter
    pulse: Pulse = field(default_factory=Pulse)
