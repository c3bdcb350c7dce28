"""Parses the latencies and faults of `forgec sim` and `forgec run --stub`.

Lowered, --assume, --calibrate -> Latencies          Job, --inject ... -> faults
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job
    from forgedsl.sim.inject import Fault
    from forgedsl.sim.latency import Latencies


class LatencyError(Exception):
    """Invalid latencies or faults; the message says why."""


def latencies_of(lowered: Lowered, assume: list[str], run: Path | None = None) -> Latencies:
    """Return the latency model of the command line: from the plan, or from a run."""
    from forgedsl.sim.assume import AssumptionError
    from forgedsl.sim.assume import assume as with_assumptions
    from forgedsl.sim.calibrate import CalibrationError, calibrated
    from forgedsl.sim.estimate import UnknownModelError, from_plan
    from forgedsl.sim.measure import uncalibrated

    try:
        plan = lowered.plan if run is None else uncalibrated(lowered.plan)
        found = from_plan(lowered.job, lowered.graph, plan)
        if run is not None:
            from forgedsl_runtime.sim.simulation import simulate

            found = calibrated(found, lowered.job, run, simulate)
        return with_assumptions(found, assume)
    except (AssumptionError, CalibrationError) as error:
        raise LatencyError(str(error)) from error
    except UnknownModelError as error:
        raise LatencyError(
            f"the size of the model of {error} is unknown: set its `arch`"
        ) from error


def faults_of(job: Job, texts: list[str]) -> list[Fault]:
    """Parse the faults; each must name a part of this job."""
    from forgedsl.sim.inject import check, parse

    try:
        return [check(parse(text), job) for text in texts]
    except ValueError as error:
        raise LatencyError(str(error)) from error
