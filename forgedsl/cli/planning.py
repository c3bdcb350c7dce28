"""Compiles a .forge file to its plan on a host.

    FILE.forge, profile, overrides -> Planned (diagnostics, Lowered or None, exit code)
    FILE.forge, profile, overrides -> Lowered on this host, for `forgec run`
    FILE.forge | plan.json | job.json | RUN | git:REV[:PATH] -> Side (label, Job), for diffs

Errors of lint rules count as errors of the file. Without a given host, lint's assumed one is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl import surface
from forgedsl.cli.overrides import SideError
from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.api import Loaded
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job
    from forgedsl.passes.state import State
    from forgedsl.sizes.hosts import Host

OF_RULES = re.compile(r"[ADLRTXN]|F104")
"""codes whose findings come from lint rules; the others come from loading and planning"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Result of planning. `lowered` is None if there are errors. `state` has the passes' results,
    None if the file could not be read. `code` is the exit code so far."""

    loaded: Loaded
    lowered: Lowered | None
    code: int
    state: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: its label, and its job."""

    label: str
    job: Job


def compile_file(
    file: Path,
    *,
    profile: str,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...] = (),
    print_after: tuple[str, ...] = (),
    timings: bool = False,
) -> Lowered | int:
    """Compile a file and return its job. If it has errors, print them and return the exit code.
    Errors of lint rules are errors here too."""
    from forgedsl.cli.compiling import print_diagnostics, say_profile
    from forgedsl.cli.host import HERE, host_of

    host = host_of(HERE, "run")
    planned = plan_file(
        file, profile=profile, overrides=overrides, set_files=set_files, host=host,
        print_after=print_after, timings=timings,
    )  # fmt: skip
    say_profile(planned.loaded, profile, host)
    print_diagnostics(planned.loaded)
    return planned.code if planned.lowered is None else planned.lowered


def plan_file(
    file: Path,
    *,
    profile: str,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...] = (),
    host: Host | None = None,
    wanted: tuple[str, ...] = (),
    print_after: tuple[str, ...] = (),
    timings: bool = False,
) -> Planned:
    """Load, lint, plan and lower a file. `wanted` names on-demand passes to run."""
    from forgedsl.cli.compiling import exit_code
    from forgedsl.passes import Request, compile_program
    from forgedsl.plan.plan import advice

    compiled = compile_program(
        Request(path=file, profile=profile, overrides=overrides, set_files=set_files, host=host),
        wanted=wanted,
        print_after=print_after,
        timings=timings,
    )
    loaded, state = compiled.loaded, compiled.state
    lowered = state.job if state is not None else None
    if any(made.name == "hir" for made in compiled.made):
        if loaded.program is not None and lowered is not None:
            for diagnostic in advice(loaded.program, lowered.graph, lowered.plan):
                loaded.reporter.report(diagnostic)
        _lint(file, loaded, overrides, set_files, host)
    if loaded.reporter.has_errors or lowered is None:
        return Planned(loaded=loaded, lowered=None, code=exit_code(loaded), state=state)
    return Planned(loaded=loaded, lowered=lowered, code=0, state=state)


def _lint(
    file: Path,
    loaded: Loaded,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...],
    host: Host | None,
) -> None:
    """Add the findings of lint rules for the planned profile, on the host of the plan."""
    from forgedsl.lint.engine import lint_file

    assert loaded.program is not None
    linted = lint_file(
        file,
        profile=loaded.program.profile or "none",
        overrides=overrides,
        set_files=set_files,
        host=host,
    )
    for name, source in linted.sources.items():
        loaded.sources.setdefault(name, source)
    known = {diagnostic.code for diagnostic in loaded.reporter}
    for diagnostic in linted.diagnostics:
        if OF_RULES.match(diagnostic.code) and diagnostic.code not in known:
            loaded.reporter.report(diagnostic)


# ---- sides of a comparison


def read_side(
    text: str,
    *,
    profile: str,
    overrides: tuple[str, ...] = (),
    set_files: tuple[Path, ...] = (),
    beside: Path | None = None,
    host: Host | None = None,
    profile_of: str = "",
) -> Side:
    """Read a side of a comparison: a file, a run folder, a job or plan, or a git revision of a
    file.

    `git:REV` is the file `beside` in revision REV. If `profile` was copied from a run instead of
    the command line, `profile_of` names that run. Raises SideError, with diagnostics printed if the
    file has errors.
    """
    if text.startswith("git:"):
        from forgedsl.cli.revisions import checked_out

        with checked_out(text, beside) as file:
            made = compile_side(file, profile, overrides, set_files, host, profile_of)
            return Side(label=text, job=made.job)
    path = Path(text)
    if path.is_dir():
        path = path / "job.json"
        if not path.is_file():
            from forgedsl.runs.checkpoints import no_run

            raise SideError(no_run(path.parent))
    if path.suffix == ".json":
        return Side(label=text, job=read_job(path))
    made = compile_side(path, profile, overrides, set_files, host, profile_of)
    return Side(label=text, job=made.job)


def compile_side(
    file: Path,
    profile: str,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...],
    host: Host | None = None,
    profile_of: str = "",
) -> Lowered:
    """Compile a file. Raises SideError, with diagnostics printed if the file has errors."""
    from forgedsl.cli.compiling import print_diagnostics

    planned = plan_file(file, profile=profile, overrides=overrides, set_files=set_files, host=host)
    if planned.lowered is None:
        if planned.code == 2:
            raise SideError(planned.loaded.reporter.diagnostics[0].message)
        spans = [d.span for d in planned.loaded.reporter.diagnostics]
        if profile_of and any(span and span.file == surface.typed("--profile") for span in spans):
            raise SideError(
                f"{profile_of} ran under profile `{profile}`, which {file} does not have; name one "
                "with --profile, or --profile none"
            )
        print_diagnostics(planned.loaded)
        raise SideError(f"{file} has errors")
    return planned.lowered


def read_job(path: Path) -> Job:
    """Read the job of a job.json or plan.json; refuse one that was edited."""
    import json

    from pydantic import ValidationError

    from forgedsl.lower.document import DocumentError, is_document, job_of
    from forgedsl.lower.job import Job, use_extensions

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        body = value.get("job", value) if isinstance(value, dict) else {}
        if isinstance(body, dict) and body.get("extensions"):
            use_extensions(body, path.parent)
        job = job_of(value) if is_document(value) else Job.model_validate(value)
    except OSError as error:
        raise SideError(f"cannot read {path}: {(error.strerror or '').lower()}") from error
    except UnicodeDecodeError as error:
        raise SideError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise SideError(f"{path} is not a job: it is not valid JSON, {error}") from error
    except DocumentError as error:
        raise SideError(f"{path} cannot be run: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SideError(f"{path} is not a job: {where}: {first['msg']}") from error
    if job.digest() != job.content_hash:
        raise SideError(
            f"{path} was changed after it was compiled: its content hash does not match"
        )
    return job
