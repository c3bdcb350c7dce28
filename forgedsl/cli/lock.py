"""`forgec lock FILE`: writes a lock, which `forgec run FILE --locked` enforces.

    pipelines/grpo_math.forge -> pipelines/grpo_math.lock

A lock is for one profile, because the profile decides models, data and services. Every run folder
has a forge.lock, so `forgec run FILE --lock RUN/forge.lock` repeats a run with the same revisions.
Exit codes: 0; 1 if the file has errors, or with --check if something has changed; 2 bad usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli import passes
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.parser import Parser
from forgedsl.errors import write_text

if TYPE_CHECKING:
    from forgedsl.lower.job import Job


def parser() -> Parser:
    parser = Parser("lock", command.__doc__, "FILE")
    passes.add_file(parser)
    passes.add_profile(parser)
    parser.add_overrides()
    parser.add_argument("-o", "--out", type=Path, metavar="PATH", help="path of the lock file")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if something drifted"
    )
    passes.add_passes(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    out: Path | None,
    check: bool,
    print_after: list[str] | None,
    timings: bool,
) -> None:
    """Record the revisions, hashes and versions that a run of FILE depends on.

    Examples:
      forgec lock pipelines/grpo_math.forge --profile cluster
      forgec lock pipelines/grpo_math.forge --profile cluster --check
      forgec lock x.forge schedule.steps=50 -o short.lock && forgec run x.forge --lock short.lock
    """
    from forgedsl.cli.planning import compile_file
    from forgedsl.lower.lock import lock_text

    lowered = compile_file(
        file, profile=profile, overrides=tuple(set_ or ()), timings=timings,
        set_files=tuple(set_file or ()), print_after=passes.checked_passes("lock", print_after),
    )  # fmt: skip
    if isinstance(lowered, int):
        raise SystemExit(lowered)
    target = out or file.with_suffix(".lock")
    if not check:
        write_text(target, lock_text(lowered.job))
        print(target)
        return
    try:
        apply_lock(lowered.job, target)
    except UsageError as error:
        print(f"forgec lock: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    print(f"{target}: nothing drifted")


def apply_lock(job: Job, path: Path) -> Job:
    """Return the job with the revisions of a lock. Raises UsageError with every field that
    differs."""
    from forgedsl.lower.lock import drift, pinned

    lock = read(path)
    fixed = pinned(job, lock)
    found = drift(fixed, lock)
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        count = f"{len(found)} field{'s' if len(found) > 1 else ''} drifted"
        raise UsageError(
            f"{count} from {path}:\n{lines}\nrestore what was locked, or update the lock with "
            "`forgec lock`"
        )
    return fixed


def read(path: Path) -> dict[str, Any]:
    from forgedsl.lower.lock import LockError, read_lock

    try:
        return read_lock(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UsageError(
            f"cannot read the lock {path}: {cause}; `forgec lock FILE -o {path}` writes one"
        ) from error
    except LockError as error:
        raise UsageError(f"{path} is not a lock file: {error}") from error
