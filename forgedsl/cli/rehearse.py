"""`forgec run --stub FILE`: rehearses the whole job on this machine.

    FILE.forge --plan--> Job + latencies + faults --launch(rehearsal)--> exit code

Controller, queues, versions, routing and restarts are the real ones, on real Monarch meshes. The
services are stand-ins that only take time. The plan is that of `forgec plan`; `--host` can describe
another host. All output says that it is a rehearsal, and has no metrics of learning.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.overrides import UsageError
from forgedsl.diagnostics import counted

if TYPE_CHECKING:
    from forgedsl.cli.running import RunOptions
    from forgedsl.lower.job import Job
    from forgedsl.sim.latency import Latencies
    from forgedsl.sim.result import Result

LOOK = 4
"""steps to simulate for an estimate of the rehearsal's time"""
SHORT = 60.0
"""seconds; no advice is printed on a shorter rehearsal"""
SAY = "REHEARSAL: no model is loaded, nothing is sampled or trained; times are sampled latencies"


def rehearse(request: RunOptions) -> int:
    """Plan, sample latencies and launch; return the exit code of a run."""
    from forgedsl.cli.compiling import print_planned
    from forgedsl.cli.host import host_of
    from forgedsl.cli.latencies import LatencyError, faults_of, latencies_of
    from forgedsl.cli.planning import plan_file
    from forgedsl.cli.running import Prepared, launch, new_run_dir, write_run_dir
    from forgedsl_runtime.stub.rehearsal import Rehearsal

    file = _checked(request)
    host = host_of(request.host, "run")
    print(SAY, file=sys.stderr, flush=True)
    planned = plan_file(
        file,
        profile=request.profile,
        overrides=request.overrides,
        set_files=request.set_files,
        print_after=request.print_after,
        timings=request.timings,
        host=host,
    )
    print_planned(planned.loaded, request.profile, host)
    if planned.lowered is None:
        return planned.code
    job = planned.lowered.job
    try:
        rehearsal = Rehearsal(
            latencies=latencies_of(planned.lowered, list(request.assume)),
            faults=tuple(faults_of(job, list(request.inject))),
            seed=job.seed,
        )
    except LatencyError as error:
        raise UsageError(str(error)) from error
    job = _quiet(job)
    if not request.quiet:
        print(outlook(job, rehearsal.latencies), file=sys.stderr, flush=True)
    run_dir = new_run_dir(request.run_dir, f"rehearsal-{job.name}")
    write_run_dir(run_dir, Prepared(job=job, inputs={}))
    return launch(job, run_dir, resume=False, request=request, rehearsal=rehearsal)


def outlook(job: Job, latencies: Latencies) -> str:
    """Estimate the time of a rehearsal by simulating its first steps; print how to shorten it."""
    from forgedsl.plan.cost import time_text
    from forgedsl_runtime.sim.simulation import simulate

    steps = job.schedule.steps
    result = simulate(job, latencies, steps=min(steps or LOOK, LOOK), seed=job.seed)
    profile = f"profile {job.profile}" if job.profile else "as written"
    if not result.steps:
        return (
            f"rehearses {job.name} ({profile}); according to simulation no step will complete: "
            f"{result.ended}"
        )
    first, each = result.steps[0].end, result.step_seconds
    length = counted(steps, "step") if steps else "to the end of the data"
    whole = f", the whole rehearsal {time_text(first + (steps - 1) * each)}" if steps else ""
    lines = [
        f"rehearses {job.name} ({profile}) in real time: {length}",
        f"  the first step takes about {time_text(first)}, each further step "
        f"{time_text(each)}{whole} (simulated, latencies from {latencies.source})",
    ]
    if steps and first + (steps - 1) * each < SHORT:
        return "\n".join(lines)
    ways = [*_quicker(result, latencies), "schedule.steps=5", "another --profile"]
    return "\n".join([*lines, f"  faster: {', '.join(ways)}; forgec sim does not wait at all"])


def _quicker(result: Result, latencies: Latencies) -> list[str]:
    """Return the `--assume` option that shortens the busiest part most, if there is one."""
    name, share = max(result.busy.items(), key=lambda part: part[1])
    setting = ""
    if name in latencies.engines:
        setting = f"{name}.tokens=20"
    elif name in result.scoring:
        setting = f"{name}.logprobs_token=0"
    elif name in result.pools and latencies.rewards:
        slowest = max(latencies.rewards, key=lambda n: latencies.rewards[n].seconds.median)
        setting = f"{slowest}.seconds=0.01"
    elif name == "trainer":
        titans = latencies.titans.items()
        setting = next((f"{n}.token=0" for n, titan in titans if titan.token), "")
    return [f"--assume {setting} ({name} is busy {share:.0%} of the time)"] if setting else []


def _checked(request: RunOptions) -> Path:
    """Return the file to rehearse; refuse options that a rehearsal cannot use."""
    if not request.stub:
        option = "--assume" if request.assume else "--inject" if request.inject else "--host"
        raise UsageError(f"{option} applies to rehearsals only: add --stub")
    if request.resume is not None or request.lock is not None:
        raise UsageError(
            "--stub cannot be combined with --resume or --locked: a rehearsal has no "
            "weights and no lock"
        )
    if request.file is None or request.file.suffix == ".json":
        raise UsageError("--stub needs a .forge file: it takes durations from the plan")
    return request.file


def _quiet(job: Job) -> Job:
    """Return the job without exporters (such as W&B) that would record the rehearsal as a run."""
    logging = job.logging.model_copy(
        update=dict.fromkeys(("wandb", "mlflow", "trackio")) | {"tensorboard": False}
    )
    return job.model_copy(update={"logging": logging}).sealed()
