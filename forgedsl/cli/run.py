"""`forgec run`: compile a .forge file, or take a plan.json or job.json, and run it in a folder.

    FILE.forge --load--> Program --build_job--> Job --launch--> exit code
                  `--> diagnostics, exit 1
    RUN/{job.json, forge.lock, inputs/} are written before anything is launched

Exit codes: 0 done, 1 errors in the file, 2 bad usage, 4 the environment cannot satisfy the plan,
5 failed, 6 stopped by a guard, 130 interrupted. Progress goes to stderr, the summary to stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forgedsl.cli.inputs import check_inputs, copy_inputs, inputs_beside
from forgedsl.cli.passes import (
    Assume,
    Inject,
    OnHost,
    Overrides,
    PrintAfter,
    Profile,
    SetFiles,
    Timings,
    checked_passes,
)
from forgedsl.cli.words import UsageError
from forgedsl.records import dataclass, replace

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="a .forge file, a plan.json or a job.json")
]
Resume = Annotated[Path | None, typer.Option(metavar="RUN", help="continue the run in this folder")]
Locked = Annotated[
    bool, typer.Option("--locked", help="refuse to run if anything drifted from the lock")
]
RecordBatches = Annotated[
    int, typer.Option(metavar="N", help="keep the first N batches for forgec replay")
]
Stub = Annotated[
    bool, typer.Option("--stub", help="a rehearsal: real meshes, services that only take time")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asks for."""

    file: Path | None
    overrides: tuple[str, ...]
    profile: str
    run_dir: Path | None
    resume: Path | None
    quiet: bool
    lock: Path | None = None
    record_batches: int = 1
    stub: bool = False
    assume: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()
    host: str = "here"
    set_files: tuple[Path, ...] = ()
    print_after: tuple[str, ...] = ()
    timings: bool = False

    @property
    def of_compiling(self) -> list[str]:
        """What is asked for that only the compiler can do, as it is written."""
        words = [*self.overrides, *(f"--set-file {path}" for path in self.set_files)]
        words += [f"--profile {self.profile}"] * (self.profile != "auto")
        words += [f"--print-after {name}" for name in self.print_after]
        return [*words, *["--timings"] * self.timings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job and the files it reads, by their name relative to the run folder."""

    job: Job
    inputs: dict[str, Path]


def command(
    file: File = None,
    profile: Profile = "auto",
    set_: Overrides = None,
    set_file: SetFiles = None,
    seed: Annotated[int | None, typer.Option(help="the same as --set run.seed=N")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="where the run is kept")] = None,
    resume: Resume = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    locked: Locked = False,
    lock: Annotated[Path | None, typer.Option(metavar="LOCK", help="another lock")] = None,
    record_batches: RecordBatches = 1,
    stub: Stub = False,
    assume: Assume = None,
    inject: Inject = None,
    host: OnHost = "here",
    print_after: PrintAfter = None,
    timings: Timings = False,
) -> None:
    """Train FILE, run a plan or a job as it is, continue a run, or rehearse one.

    \b
    Examples:
      forgec run pipelines/grpo_math.forge
      forgec run pipelines/grpo_math.forge --seed 3 schedule.steps=100 --trainer.procs 2
      forgec run runs/grpo_math-20261120-120000/job.json
      forgec run --resume runs/grpo_math-20261120-120000
      forgec run --stub pipelines/grpo_math.forge --host 8xH200 --inject kill:generator@step=5
    """
    try:
        request = Request(
            file=file,
            overrides=(*(set_ or []), *([] if seed is None else [f"run.seed={seed}"])),
            set_files=tuple(set_file or ()),
            profile=profile, run_dir=run_dir,
            resume=resume, quiet=quiet,
            lock=lock_of(file, lock) if locked or lock is not None else None,
            record_batches=record_batches, stub=stub,
            assume=tuple(assume or ()), inject=tuple(inject or ()), host=host,
            print_after=checked_passes("run", print_after),
            timings=timings,
        )  # fmt: skip
        raise typer.Exit(execute(request))
    except UsageError as error:
        print(f"forgec run: {error}", file=sys.stderr)
        raise typer.Exit(2) from error


def lock_of(file: Path | None, given: Path | None) -> Path:
    """The lock asked for, else the one of the file."""
    if given is not None:
        return given
    if file is None:
        raise UsageError("--locked needs a .forge file")
    return file.with_suffix(".lock")


def execute(request: Request) -> int:
    """Compile if needed, prepare the run folder, launch, report."""
    if request.stub or request.assume or request.inject or request.host != "here":
        from forgedsl.cli.rehearse import rehearse

        return rehearse(request)
    if request.resume is not None:
        return _resume(request)
    if request.file is None:
        raise UsageError("needs a .forge file, a plan.json or a job.json (or --resume RUN)")
    prepared = prepare(request, request.file)
    if isinstance(prepared, int):
        return prepared
    if request.lock is not None:
        from forgedsl.cli.lock import hold

        prepared = replace(prepared, job=hold(prepared.job, request.lock))
    run_dir = new_run_dir(request.run_dir, prepared.job.name)
    write_run_dir(run_dir, prepared)
    return launch(prepared.job, run_dir, resume=False, request=request)


def prepare(request: Request, file: Path) -> Prepared | int:
    """The job of a .forge file or job.json, or the exit code after diagnostics were printed."""
    if file.suffix == ".json":
        return _from_json(request, file)
    from forgedsl.cli.compiling import compile_file

    lowered = compile_file(
        file,
        profile=request.profile,
        overrides=request.overrides,
        set_files=request.set_files,
        print_after=request.print_after,
        timings=request.timings,
    )
    if isinstance(lowered, int):
        return lowered
    return Prepared(job=lowered.job, inputs={name: source for source, name in lowered.files})


def _from_json(request: Request, file: Path) -> Prepared:
    """A job.json or plan.json is final: nothing can be set on it, its inputs lie beside it."""
    from forgedsl.cli.planning import SideError, read_job

    if request.of_compiling:
        raise UsageError(
            f"{file} is compiled and final, so {request.of_compiling[0]} cannot apply; "
            "run the .forge file"
        )
    try:
        job = read_job(file)
    except SideError as error:
        raise UsageError(str(error)) from error
    check_inputs(job, file.parent)
    return Prepared(job=job, inputs=inputs_beside(file.parent))


def new_run_dir(wanted: Path | None, name: str) -> Path:
    """`runs/<pipeline>-<UTC time>`, or the folder asked for, which must not hold a run."""
    if wanted is not None:
        if (wanted / "job.json").exists():
            raise UsageError(
                f"{wanted} holds a run already; name another folder, or continue that run with "
                f"--resume {wanted}"
            )
        try:
            wanted.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the run folder {wanted}: {error.strerror}") from error
        return wanted
    from datetime import UTC, datetime

    stem = Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for folder in (stem, *(Path(f"{stem}-{i}") for i in range(2, 100))):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise UsageError(f"{stem} and 98 more are taken; name a folder with --run-dir")


def write_run_dir(run_dir: Path, prepared: Prepared) -> None:
    """job.json, forge.lock and the inputs: all that is needed to run it again."""
    from forgedsl.lower.lock import lock_text

    copy_inputs(prepared.inputs, run_dir, link=True)
    (run_dir / "job.json").write_text(prepared.job.model_dump_json(indent=1), encoding="utf-8")
    (run_dir / "forge.lock").write_text(lock_text(prepared.job), encoding="utf-8")


def _resume(request: Request) -> int:
    """Continue a run; with a file, its job may differ only in what a resume may change."""
    from forgedsl.cli.resuming import differences, last_step, load_run_job, with_changes

    run_dir = request.resume
    assert run_dir is not None
    if request.run_dir is not None:
        raise UsageError("--resume continues in the run's own folder; --run-dir cannot be given")
    job = load_run_job(run_dir)
    if (run_dir / "rehearsal.json").exists():
        raise UsageError(f"{run_dir} is a rehearsal: it has no weights to go on from")
    if request.file is None:
        if request.of_compiling:
            raise UsageError(
                f"{request.of_compiling[0]} needs the .forge file as well: {run_dir} is compiled"
            )
    else:
        prepared = prepare(request, request.file)
        if isinstance(prepared, int):
            return prepared
        found = differences(job, prepared.job)
        if found:
            lines = "\n".join(f"  {line}" for line in found[:12])
            raise UsageError(
                f"{request.file} is not the job of {run_dir}; a resumed run may change only how "
                f"long it runs, its evals, checkpoints and logging:\n{lines}"
            )
        job = with_changes(job, prepared.job)
        (run_dir / "job.json").write_text(job.model_dump_json(indent=1), encoding="utf-8")
    if job.schedule.steps is not None and last_step(run_dir) >= job.schedule.steps:
        raise UsageError(
            f"{run_dir} has done all its {job.schedule.steps} steps; for more, give the .forge "
            "file and a larger schedule.steps"
        )
    check_inputs(job, run_dir)
    return launch(job, run_dir, resume=True, request=request)


def launch(
    job: Job, run_dir: Path, *, resume: bool, request: Request, rehearsal: Any = None
) -> int:
    """Hand over to the runtime, then write the report and say where everything is."""
    from forgedsl.runs import write_report
    from forgedsl.runs.summary import summary
    from forgedsl.runtime.launch import run
    from forgedsl.runtime.readers import close_readers, open_readers
    from forgedsl.runtime.stderr import native_stderr

    if not request.quiet:
        print(f"{job.name}: run folder {run_dir}", file=sys.stderr, flush=True)
    with native_stderr(run_dir / "logs" / "controller.log"):
        readers = open_readers(job, run_dir, quiet=request.quiet)
        try:
            handlers = [reader.on_event for reader in readers]
            code: int = run(
                job,
                run_dir,
                resume=resume,
                readers=handlers,
                record_batches=request.record_batches,
                rehearsal=rehearsal,
            )
        finally:
            close_readers(readers)
    write_report(run_dir)
    print(summary(run_dir, code), flush=True)
    return code
