"""`forgec run --stub FILE`: a rehearsal of the whole job on this machine.

    FILE.forge --plan--> Job + latencies + faults --launch(rehearsal)--> exit code

Controller, queues, versions, routing and restarts are the real ones, on real Monarch meshes; what
stands behind the services only takes time. The plan is that of `forgec plan`: nothing is asked of
this host. What is printed and written says that it is a rehearsal, and holds no metric of learning.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.words import UsageError

if TYPE_CHECKING:
    from forgedsl.cli.run import Request
    from forgedsl.lower.job import Job

SAY = "REHEARSAL: no model is loaded, nothing is sampled or trained; times are sampled latencies"


def rehearse(request: Request) -> int:
    """Plan, sample, launch; the exit codes of a run."""
    from forgedsl.cli.compiling import print_diagnostics
    from forgedsl.cli.latencies import ModelError, faults_of, model_of
    from forgedsl.cli.planning import plan_file
    from forgedsl.cli.run import Prepared, launch, new_run_dir, write_run_dir
    from forgedsl.runtime.stub.rehearsal import Rehearsal

    file = _checked(request)
    print(SAY, file=sys.stderr, flush=True)
    planned = plan_file(
        file,
        profile=request.profile,
        overrides=request.overrides,
        set_files=request.set_files,
        print_after=request.print_after,
        timings=request.timings,
    )
    print_diagnostics(planned.loaded)
    if planned.lowered is None:
        return planned.code
    job = planned.lowered.job
    try:
        rehearsal = Rehearsal(
            latencies=model_of(planned.lowered, list(request.assume)),
            faults=tuple(faults_of(job, list(request.inject))),
            seed=job.seed,
        )
    except ModelError as error:
        raise UsageError(str(error)) from error
    job = _quiet(job)
    run_dir = new_run_dir(request.run_dir, f"rehearsal-{job.name}")
    write_run_dir(run_dir, Prepared(job=job, inputs={}))
    return launch(job, run_dir, resume=False, request=request, rehearsal=rehearsal)


def _checked(request: Request) -> Path:
    """The file, if the request makes sense as a rehearsal."""
    if not request.stub:
        option = "--assume" if request.assume else "--inject"
        raise UsageError(f"{option} is about a rehearsal: add --stub")
    if request.resume is not None or request.lock is not None:
        raise UsageError("a rehearsal has no weights and no lock: --stub stands alone")
    if request.file is None or request.file.suffix == ".json":
        raise UsageError("--stub needs a .forge file: the plan says how long things take")
    return request.file


def _quiet(job: Job) -> Job:
    """The job without services that would take a rehearsal for a run."""
    logging = job.logging.model_copy(update={"wandb": None, "tensorboard": False})
    return job.model_copy(update={"logging": logging}).sealed()
