"""The simulated run: a job's work flow over simulated services, on simulated time.

Workload + Latencies + faults + seed --simulate--> Result
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.lower.job import Job
from forgedsl.sim.inject import Fault
from forgedsl.sim.latency import Latencies
from forgedsl.sim.result import Result
from forgedsl.sim.stages import Stages
from forgedsl.sim.training import Training
from forgedsl.sim.workload import Workload, workload

WARM = 3


class Deadlock(Exception):
    """Nothing can happen any more, and the run is not over."""


def simulate(
    job: Job,
    latencies: Latencies,
    *,
    steps: int | None,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    load: Workload | None = None,
) -> Result:
    """Simulate `steps` optimizer steps of `job` (None: as many as it has)."""
    stages = Stages(job, latencies, steps, seed, faults, load or workload(job))
    training = Training(stages)
    training.start()
    return _run(stages, training)


def _run(stages: Stages, training: Training) -> Result:
    if not stages.world.run(lambda: training.ended != ""):
        places = ", ".join(f"{g.source.name}: {g.in_flight} in flight" for g in stages.groups)
        raise Deadlock(f"at step {training.step + 1}, {stages.world.now:g} s: {places}")
    for fleet in stages.fleets.values():
        fleet.advance()
    dropped: dict[str, int] = {}
    for groups in stages.groups:
        for reason, count in groups.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    whole = max(stages.world.now, 1e-9)
    schedule, fleets = stages.load.schedule, stages.fleets
    return Result(
        steps=tuple(training.steps),
        ended=training.ended,
        seconds=stages.world.now,
        events=stages.world.events,
        replicas={name: len(fleet.replicas) for name, fleet in fleets.items()},
        sampling={n: sum(r.engine.busy for r in f.replicas) for n, f in fleets.items()},
        stopped={n: sum(r.engine.stopped for r in f.replicas) for n, f in fleets.items()},
        sampled={n: sum(r.engine.tokens for r in f.replicas) for n, f in fleets.items()},
        scoring={n: scorer.busy / whole for n, scorer in stages.scorers.items()},
        pools={name: pool.busy / pool.procs / whole for name, pool in stages.pools.items()},
        controller=stages.controller.busy / whole,
        dropped=dropped,
        lost=sum(fleet.lost for fleet in fleets.values()),
        deaths=sum(fleet.deaths for fleet in fleets.values()),
        age_bound=schedule.age_bound,
        versioned=any(source.syncs for source in stages.load.sources),
        warm=min(WARM, len(training.steps) // 2),
    )
