"""Steps shared by the commands that run a job: make a run folder, launch, report.

RunOptions, Prepared (a job and its files) --> RUN/{job.json, forge.lock, inputs/} --> exit code
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl import surface
from forgedsl.cli.inputs import copy_inputs
from forgedsl.cli.overrides import UsageError, drop_output
from forgedsl.cli.run_lock import check_free, claim
from forgedsl.errors import CannotWriteError, LaunchError, UserCodeError, writing
from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.lower.job import Job


RUNS = Path("runs")
PREPARED = ("job.json", "forge.lock", "estimate.json", "inputs")
MADE = ("events.jsonl", "metrics.jsonl", "samples.jsonl", "report.html", "tensorboard", "models",
        "logs", "checkpoints")  # fmt: skip
"""files that a run writes after its launch"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `forgec run`, parsed."""

    file: Path | None
    overrides: tuple[str, ...]
    profile: str
    run_dir: Path | None
    resume: Path | None
    quiet: bool
    dry_run: bool = False
    lock: Path | None = None
    record_batches: int = 1
    stub: bool = False
    assume: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()
    host: str = "here"
    set_files: tuple[Path, ...] = ()
    print_after: tuple[str, ...] = ()
    timings: bool = False
    allow: str = ""

    @property
    def compile_options(self) -> list[str]:
        """Return the given options that only a compilation can apply, as written."""
        words = [*self.overrides, *(f"--set-file {path}" for path in self.set_files)]
        words += [f"--profile {self.profile}"] * (self.profile != "auto")
        words += [f"--print-after {name}" for name in self.print_after]
        return [*words, *["--timings"] * self.timings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job, and the files it reads, by their path relative to the run folder."""

    job: Job
    inputs: dict[str, Path]
    estimate: dict[str, Any] | None = None
    """estimates of the plan, if this process made the plan"""


def new_run_dir(wanted: Path | None, name: str, file: Path | None = None) -> Path:
    """Make and lock a run folder: the `wanted` one, else `runs/<pipeline>-<UTC time>`. An existing
    folder must not hold a run that has done a step; files of a run that ended before its first step
    are removed."""
    if wanted is not None:
        check_run_dir(wanted, file)
        _make(wanted)
        claim(wanted)
        own = wanted / "job.json"
        prepared = file is not None and own.exists() and own.samefile(file)
        if own.exists() and (not prepared or (wanted / "events.jsonl").exists()):
            text = f"note: the run in {wanted} ended before its first step; it starts again"
            print(text, file=sys.stderr)
            _clear(wanted, MADE if prepared else (*MADE, *PREPARED))
        return wanted
    from datetime import UTC, datetime

    stem = RUNS / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for folder in (stem, *(Path(f"{stem}-{i}") for i in range(2, 100))):
        try:
            _make(folder, exist_ok=False)
        except FileExistsError:
            continue
        claim(folder)
        return folder
    raise UsageError(f"{stem} and 98 numbered variants already exist; name a folder{_by_option()}")


def check_run_dir(wanted: Path | None, file: Path | None = None) -> None:
    """Refuse a run folder that cannot be used, before the file is compiled. Nothing is written.

    Raises:
        UsageError: another process has it, or it contains a run.
    """
    if wanted is None:
        return
    from forgedsl.runs.checkpoints import SESSION

    check_free(wanted)
    if (wanted / SESSION).exists():
        raise UsageError(f"{wanted} already contains a Session of Python; name another folder")
    if (wanted / "job.json").exists() and has_begun(wanted):
        raise UsageError(
            f"{wanted} already contains a run; name another folder, or continue that run with "
            + surface.call(f"run --resume {wanted}", f'forgedsl.open_run("{wanted}").resume()')
        )
    if wanted.exists() and not wanted.is_dir():
        raise UsageError(f"the run folder {wanted} is a file")


def _by_option() -> str:
    return "" if surface.in_python() else " with --run-dir DIR"


def has_begun(run_dir: Path) -> bool:
    """True if a run in this folder has done a step, or was a rehearsal."""
    from forgedsl.runs.checkpoints import SESSION, checkpoint_steps

    metrics = run_dir / "metrics.jsonl"
    done = metrics.is_file() and metrics.stat().st_size > 0
    return (
        done
        or bool(checkpoint_steps(run_dir))
        or any((run_dir / name).exists() for name in ("rehearsal.json", SESSION))
    )


def _clear(run_dir: Path, names: Sequence[str]) -> None:
    """Remove the files of an unfinished start."""
    with writing(run_dir):
        for path in (run_dir / name for name in names):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _make(folder: Path, *, exist_ok: bool = True) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError as error:
        if not exist_ok:
            raise
        raise UsageError(f"the run folder {folder} is a file") from error
    except OSError as error:
        why = f"cannot make the run folder {folder}: {error.strerror}"
        raise UsageError(f"{why}; choose another place{_by_option()}") from error


def write_run_dir(run_dir: Path, prepared: Prepared) -> None:
    """Write job.json, forge.lock and the inputs: everything that is needed to run the job again."""
    from forgedsl.lower.lock import lock_text

    with writing(run_dir):
        copy_inputs(prepared.inputs, run_dir, link=True)
        (run_dir / "job.json").write_text(prepared.job.model_dump_json(indent=1), encoding="utf-8")
        (run_dir / "forge.lock").write_text(lock_text(prepared.job), encoding="utf-8")
        if prepared.estimate is not None:
            estimate = json.dumps(prepared.estimate, indent=1)
            (run_dir / "estimate.json").write_text(estimate, encoding="utf-8")


def launch(
    job: Job,
    run_dir: Path,
    *,
    resume: bool,
    request: RunOptions,
    rehearsal: Any = None,
    changed_data: bool = False,
    calls_user_code: bool = False,
) -> int:
    """Run the job, then write the report and print where the results are. A job for a scheduler is
    submitted, unless this process already runs in its allocation. `calls_user_code`: rewards and
    environments are called once, and if one of them cannot work, the run does not begin.

    Raises:
        UserCodeError: one of them cannot work.
    """
    trial = partial(_try_once, job) if calls_user_code else None
    if rehearsal is None:
        code_of_job = _submitted(job, run_dir, resume, request, changed_data, trial)
        if code_of_job is not None:
            return code_of_job
    from forgedsl.runs.summary import summary
    from forgedsl_runtime.launch import run
    from forgedsl_runtime.readers import close_readers, open_readers
    from forgedsl_runtime.stderr import native_stderr

    with native_stderr(run_dir / "logs" / "controller.log"):
        if not request.quiet:
            print(f"{job.name}: run folder {run_dir}", file=sys.stderr, flush=True)
        readers = open_readers(job, run_dir, quiet=request.quiet)
        try:
            handlers = [reader.on_event for reader in readers]
            code: int = run(
                job, run_dir, resume=resume, readers=handlers,
                record_batches=request.record_batches, rehearsal=rehearsal,
                changed_data=changed_data, trial=trial,
            )  # fmt: skip
        finally:
            close_readers(readers)
        if not run_dir.is_dir():
            print(f"no report and no summary: {run_dir} has been removed", file=sys.stderr)
            return code
        _write_report(run_dir)
        _conclude(summary(run_dir, code))
    return code


def _write_report(run_dir: Path) -> None:
    from forgedsl.runs import write_report

    try:
        with writing(run_dir / "report.html"):
            write_report(run_dir)
    except CannotWriteError as error:
        print(f"warning: the report was not written: {error}", file=sys.stderr)


def _try_once(job: Job, folder: Path) -> list[tuple[str, str]]:
    from forgedsl.cli.trying import try_once

    try:
        return try_once(job, folder)
    except LaunchError as error:
        raise UserCodeError(str(error)) from error


def nearest_folder(path: Path) -> Path:
    """Return the path, if it exists, else the nearest folder above it that does."""
    whole = path.absolute()
    return next(each for each in (whole, *whole.parents) if each.exists())


@contextmanager
def left_as_it_was(run_dir: Path, before: Path, *, prepared: bool) -> Iterator[None]:
    """If the body finds that the run cannot begin, since user code cannot work or a package is
    missing, remove the run folder and what was made above it. `before` is the `nearest_folder` of
    an earlier time. If this is the run folder, remove only the files of this start; keep those of
    the job if they were `prepared` before. A run that has done a step is left as it is: a package
    may also be missing at its end."""
    whole = run_dir.absolute()
    try:
        yield
    except (UserCodeError, ModuleNotFoundError):
        if has_begun(run_dir):
            raise
        if whole == before:
            _clear(run_dir, MADE if prepared else (*MADE, *PREPARED))
        else:
            shutil.rmtree(run_dir)
            with suppress(OSError):  # other files are beside it by now
                for folder in itertools.takewhile(lambda each: each != before, whole.parents):
                    folder.rmdir()
        raise


def _submitted(
    job: Job, run_dir: Path, resume: bool, request: RunOptions, changed_data: bool,
    trial: Callable[[Path], list[tuple[str, str]]] | None,
) -> int | None:  # fmt: skip
    """Submit a job to its scheduler and return its exit code; None if it should run here."""
    from forgedsl.cli.submit import submit, submitter

    facts = submitter(job)
    if facts is None:
        return None
    if changed_data:
        raise UsageError("--allow data works only inside an allocation (salloc)")
    for kind, text in [] if trial is None else trial(run_dir):
        print(f"{kind}: {text}", file=sys.stderr, flush=True)
    options = ("--record-batches", str(request.record_batches))
    return submit(job, facts, run_dir, options, resume=resume, quiet=request.quiet)


def _conclude(text: str) -> None:
    """Print the summary. A stdout that cannot be written does not change the exit code."""
    try:
        print(text, flush=True)
    except OSError as error:
        drop_output()
        if not isinstance(error, BrokenPipeError):
            print(f"warning: the summary could not be printed: {error.strerror}", file=sys.stderr)
