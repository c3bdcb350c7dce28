"""The simulated run: the real controller over services that take simulated time.

Job + Latencies + faults + seed --simulate--> Result
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any

from forgedsl.errors import RunError
from forgedsl.lower.job import Job
from forgedsl.sim.inject import Fault
from forgedsl.sim.latency import Latencies
from forgedsl.sim.result import Result, Step
from forgedsl_runtime.controller import Controller
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.events import Event, EventLog, Span
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.sim.clock import run
from forgedsl_runtime.sim.endpoints import SimEndpoints

WARM = 3


class _Quiet(Span):
    """A span that emits no events."""

    __slots__ = ()

    def __enter__(self) -> Event:
        return self._end

    def __exit__(self, *error: object) -> None:
        pass


class _Record(EventLog):
    """Event log that keeps only what a result needs."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.dropped: Counter[str] = Counter()
        self.events = 0
        self._ages: dict[int, Counter[int]] = {}

    def span(self, kind: str, **fields: Any) -> Span:
        self.events += 2
        return super().span(kind, **fields) if kind == "step" else _Quiet(self, kind, 0, fields)

    def take(self, event: Event) -> None:
        self.events += 1
        match event["kind"]:
            case "step.end":
                # a step that failed has no ages
                self._ages.setdefault(event["step"], Counter(event.get("ages")))
            case "group.dropped":
                self.dropped[event["reason"]] += 1
            case "metrics":
                self.steps.append(
                    Step(
                        step=event["step"], end=event["wall_s"], seconds=event["step_s"],
                        idle=event["trainer_idle_s"], tokens=event["tokens"],
                        ages=self._ages.pop(event["step"], Counter()),
                        dropped=event["groups_dropped"],
                    )
                )  # fmt: skip


def simulate(
    job: Job,
    latencies: Latencies,
    *,
    steps: int | None,
    seed: int = 0,
    faults: Sequence[Fault] = (),
) -> Result:
    """Simulate `steps` optimizer steps of `job` (None: as many as it has)."""
    if steps is not None:
        schedule = job.schedule.model_copy(update={"steps": steps})
        job = job.model_copy(update={"schedule": schedule})
    collecting = gc.isenabled()
    gc.disable()  # a run makes millions of objects, of which almost none are cyclic
    try:
        return run(_simulated(job, latencies, seed, faults))
    finally:
        if collecting:
            gc.enable()


async def _simulated(job: Job, latencies: Latencies, seed: int, faults: Sequence[Fault]) -> Result:
    services, record = SimEndpoints(job, latencies, seed, faults), _Record()
    try:
        outcome = await Controller(job, services, record).run()
    except RunError as error:
        return _result(job, analyse(job), services, record, str(error).splitlines()[0])
    return _result(job, analyse(job), services, record, outcome.ended)


def _result(job: Job, flow: Flow, services: SimEndpoints, record: _Record, ended: str) -> Result:
    fleets = services.fleets
    for fleet in fleets.values():
        fleet.advance()
    seconds = asyncio.get_running_loop().time()
    whole = max(seconds, 1e-9)
    engines = {n: [r.engine for r in fleet.replicas] for n, fleet in fleets.items()}
    return Result(
        steps=tuple(record.steps),
        ended=ended,
        seconds=seconds,
        events=record.events,
        replicas={name: len(found) for name, found in engines.items()},
        sampling={name: sum(e.busy for e in found) for name, found in engines.items()},
        stopped={name: sum(e.stopped for e in found) for name, found in engines.items()},
        sampled={name: sum(e.tokens for e in found) for name, found in engines.items()},
        scoring={name: busy / whole for name, busy in services.scoring.items()},
        pools={name: pool.busy / pool.count / whole for name, pool in services.pools.items()},
        controller=services.controller.busy / whole,
        dropped=record.dropped,
        lost=sum(fleet.lost for fleet in fleets.values()),
        deaths=sum(fleet.deaths for fleet in fleets.values()),
        age_bound=job.schedule.age_bound,
        versioned=any(source.syncs for source in flow.sources),
        warm=min(WARM, len(record.steps) // 2),
    )
