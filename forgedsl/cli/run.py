"""`forgec run`: compile a .forge file, or take a plan.json or job.json, and run it in a folder.

    FILE.forge --load--> Program --build_job--> Job --launch--> exit code
                  `--> diagnostics, exit 1
    RUN/{job.json, forge.lock, inputs/} are written before anything is launched

Exit codes: 0 done, 1 errors in the file, 2 bad usage, 4 the environment cannot satisfy the plan,
5 failed, 6 stopped by a guard, 130 interrupted. Progress goes to stderr, the summary to stdout.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl import surface
from forgedsl.cli import passes
from forgedsl.cli.inputs import check_inputs, copy_inputs, inputs_beside
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.parser import Parser, at_least, whole
from forgedsl.cli.run_lock import claim
from forgedsl.cli.running import (
    RUNS,
    Prepared,
    RunOptions,
    check_run_dir,
    launch,
    left_as_it_was,
    nearest_folder,
    new_run_dir,
    write_run_dir,
)
from forgedsl.errors import writing
from forgedsl.records import replace

if TYPE_CHECKING:
    from forgedsl.cli.resuming import Difference
    from forgedsl.lower.job import Job


def parser() -> Parser:
    parser = Parser("run", command.__doc__, "[FILE]")
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="a .forge file, a plan.json or a job.json",
    )
    passes.add_profile(parser)
    parser.add_overrides()
    parser.add_argument("--seed", type=whole, metavar="N", help="the same as --set run.seed=N")
    parser.add_argument("--run-dir", type=Path, metavar="PATH", help="folder of the run")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="continue the run in this folder"
    )
    parser.add_argument(
        "--allow", default="", metavar="CLASS",
        help=("with --resume: accept changes of the optimizer (numerics), data (data), or ranks "
              "(placement)"),
    )  # fmt: skip
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything up to the launch, and start nothing",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--locked", action="store_true", help="refuse to run if anything drifted from the lock"
    )
    parser.add_argument("--lock", type=Path, metavar="LOCK", help="use this lock file")
    parser.add_argument(
        "--record-batches", type=at_least(0), default=1, metavar="N",
        help="keep the first N batches for forgec replay",
    )  # fmt: skip
    parser.add_argument(
        "--stub", action="store_true",
        help="rehearsal: real processes and controller, but services sleep instead of computing",
    )  # fmt: skip
    passes.add_faults(parser)
    passes.add_host(parser)
    passes.add_passes(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path | None,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    seed: int | None,
    run_dir: Path | None,
    resume: Path | None,
    allow: str,
    dry_run: bool,
    quiet: bool,
    locked: bool,
    lock: Path | None,
    record_batches: int,
    stub: bool,
    assume: list[str] | None,
    inject: list[str] | None,
    host: str,
    print_after: list[str] | None,
    timings: bool,
) -> None:
    """Train FILE, run a plan.json or job.json unchanged, continue a run, or rehearse one.

    Examples:
      forgec run pipelines/grpo_math.forge --dry-run
      forgec run pipelines/grpo_math.forge --seed 3 schedule.steps=100 --trainer.procs 2
      forgec run runs/grpo_math-20261120-120000/job.json
      forgec run --resume runs/grpo_math-20261120-120000
      forgec run --stub pipelines/grpo_math.forge --host 8xH200 --inject kill:generator@step=5
    """
    try:
        request = RunOptions(
            file=file,
            overrides=(*(set_ or []), *([] if seed is None else [f"run.seed={seed}"])),
            set_files=tuple(set_file or ()),
            profile=profile, run_dir=run_dir,
            resume=resume, quiet=quiet, dry_run=dry_run,
            lock=lock_of(file, lock) if locked or lock is not None else None,
            record_batches=record_batches, stub=stub,
            assume=tuple(assume or ()), inject=tuple(inject or ()), host=host,
            print_after=passes.checked_passes("run", print_after), timings=timings,
            allow=allowed(allow, resume),
        )  # fmt: skip
        raise SystemExit(execute(request))
    except UsageError as error:
        print(f"forgec run: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def allowed(given: str, resume: Path | None) -> str:
    """Return the class of changes that `--allow` permits, besides length and output."""
    if given not in ("", "numerics", "data", "placement"):
        named = surface.option("--allow")
        raise UsageError(f"{named} must be `numerics`, `data` or `placement`, not `{given}`")
    if given and resume is None:
        raise UsageError("--allow needs --resume RUN")
    return given


def lock_of(file: Path | None, given: Path | None) -> Path:
    """Return the lock of the command line, else the one beside the file."""
    if given is not None:
        return given
    if file is None:
        raise UsageError("--locked needs a .forge file")
    return file.with_suffix(".lock")


def execute(request: RunOptions) -> int:
    """Compile if needed, prepare the run folder, launch, report."""
    if request.dry_run and (request.stub or request.resume is not None):
        raise UsageError("--dry-run cannot be combined with --resume or --stub")
    if request.stub or request.assume or request.inject or request.host != "here":
        from forgedsl.cli.rehearse import rehearse

        return rehearse(request)
    if request.resume is not None:
        return _resume(request)
    if request.file is None:
        raise UsageError("needs a .forge file, a plan.json or a job.json (or --resume RUN)")
    if not request.dry_run:
        check_run_dir(request.run_dir, request.file)
    prepared = prepare(request, request.file)
    if isinstance(prepared, int):
        return prepared
    if request.lock is not None:
        from forgedsl.cli.lock import apply_lock

        prepared = replace(prepared, job=apply_lock(prepared.job, request.lock))
    if request.dry_run:
        from forgedsl.cli.dry_run import dry_run

        return dry_run(prepared, request)
    before = nearest_folder(request.run_dir or RUNS)
    run_dir = new_run_dir(request.run_dir, prepared.job.name, request.file)
    submitted = (run_dir / "job.json").exists()
    with left_as_it_was(run_dir, before, prepared=submitted):
        if not submitted:
            write_run_dir(run_dir, prepared)
        return launch(prepared.job, run_dir, resume=False, request=request, calls_user_code=True)


def prepare(request: RunOptions, file: Path, chosen: tuple[str, ...] = ()) -> Prepared | int:
    """Compile a .forge file or read a job.json, and return the prepared job. If it has errors,
    print them and return the exit code. Settings that are `auto` in the file take the values of
    `chosen` or of the lock."""
    if file.suffix == ".json":
        return _from_json(request, file)
    from forgedsl.cli.planning import compile_file

    if request.lock is not None:
        from forgedsl.cli.lock import read
        from forgedsl.lower.lock import choices

        chosen = (*choices(read(request.lock).get("chosen", {})), *chosen)
    lowered = compile_file(
        file,
        profile=request.profile,
        overrides=(*chosen, *request.overrides),
        set_files=request.set_files,
        print_after=request.print_after,
        timings=request.timings,
    )
    if isinstance(lowered, int):
        return lowered
    from forgedsl.sim.measure import estimate_of

    inputs = {name: source for source, name in lowered.files}
    return Prepared(job=lowered.job, inputs=inputs, estimate=estimate_of(lowered))


def _from_json(request: RunOptions, file: Path) -> Prepared:
    """Read a job.json or plan.json. Overrides are refused; its inputs are beside it."""
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import read_job

    if request.compile_options:
        raise UsageError(
            f"{file} is already compiled, so {request.compile_options[0]} cannot be applied; run "
            "the .forge file"
        )
    try:
        job = read_job(file)
    except SideError as error:
        raise UsageError(str(error)) from error
    check_inputs(job, file.parent)
    return Prepared(job=job, inputs=inputs_beside(file.parent))


def _resume(request: RunOptions) -> int:
    """Continue a run. If a file is given, its job may differ only in what a resume may change."""
    from forgedsl.cli.data_checks import check_data
    from forgedsl.cli.resuming import load_run_job, note_changes, package_changes, where_from
    from forgedsl.runs.checkpoints import last_step
    from forgedsl_runtime.events import replace_text

    run_dir = request.resume
    assert run_dir is not None
    if request.run_dir is not None:
        raise UsageError("--resume continues in the run's own folder; --run-dir cannot be given")
    if (run_dir / "job.json").is_file():
        claim(run_dir)
    old = load_run_job(run_dir)
    if (run_dir / "rehearsal.json").exists():
        raise UsageError(f"{run_dir} is a rehearsal: it has no weights to continue from")
    found = _changed(request, run_dir, old)
    if isinstance(found, int):
        return found
    job, inputs, taken = found[0].job, found[0].inputs, found[1]
    if job.schedule.steps is not None and (done := last_step(run_dir)) >= job.schedule.steps:
        more = 'resume("schedule.steps=N")' if surface.in_python() else "add FILE schedule.steps=N"
        asked = f"all its {done} steps; for more, {more}"
        if request.file is not None:
            asked = (
                f"{done} steps, but only {job.schedule.steps} are asked for; for more, set "
                "schedule.steps=N"
            )
        raise UsageError(f"{run_dir} has done {asked}")
    touched = {d.setting.split(".")[1] for d in taken if d.setting.startswith("datasets.")}
    changed = sorted(touched & job.datasets.keys())
    if changed:  # nothing is written before all checks have passed
        check_data(job, inputs or inputs_beside(run_dir), changed)
    copy_inputs(inputs, run_dir, link=True)
    check_inputs(job, run_dir)
    taken = [*taken, *package_changes(job)]
    with writing(run_dir):
        if job is not old:
            replace_text(run_dir / "job.json", job.model_dump_json(indent=1))
        note_changes(run_dir, taken)
    if not request.quiet:
        print(f"{run_dir} {where_from(run_dir)}", file=sys.stderr)
    return launch(job, run_dir, resume=True, request=request, changed_data=bool(touched))


def _changed(
    request: RunOptions, run_dir: Path, old: Job
) -> tuple[Prepared, list[Difference]] | int:
    """Return the job of a resumed run and its permitted changes, or an exit code."""
    from forgedsl.cli.resuming import (
        differences,
        path_of,
        refused,
        rehashed,
        split,
        with_changes,
    )
    from forgedsl.lower.lock import choices

    if request.file is None:
        if request.compile_options:
            raise UsageError(
                f"{request.compile_options[0]} needs the .forge file as well: "
                + shlex.join(
                    [
                        "forgec",
                        "run",
                        path_of(old, run_dir) or "FILE",
                        "--resume",
                        str(run_dir),
                        *request.compile_options,
                    ]
                )
            )
        job = rehashed(old, run_dir) if request.allow == "data" else old
        return Prepared(job=job, inputs={}), differences(old, job)
    prepared = prepare(request, request.file, choices(old.chosen))
    if isinstance(prepared, int):
        return prepared
    found, taken = split(differences(old, prepared.job), request.allow)
    if found:
        raise UsageError(f"{request.file} differs from the job of {run_dir}: {refused(found)}")
    inputs = prepared.inputs if taken and request.allow == "data" else {}
    job = with_changes(old, prepared.job, allowed=request.allow if taken else "")
    return Prepared(job=job, inputs=inputs), taken
