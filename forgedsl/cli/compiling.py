"""From a .forge file to a sealed job on this host, for `forgec run`.

    FILE.forge, profile, overrides --load--> Program --lower--> Job + files to copy beside it

Diagnostics go to stderr. A profile that was chosen because of the host is said first of all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Severity

if TYPE_CHECKING:
    from forgedsl.lower.build import Lowered


UNREADABLE = "S016"
"""the file cannot be read: bad usage, not an error in the file"""
TOO_SMALL = frozenset({"P203", "P205"})
"""the plan asks for more GPUs or memory than this host has"""


def compile_file(
    file: Path,
    *,
    profile: str,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...] = (),
    print_after: tuple[str, ...] = (),
    timings: bool = False,
) -> Lowered | int:
    """The lowered program, or the exit code after its errors were printed."""
    from forgedsl.cli.host import detect_host
    from forgedsl.hir.context import Host
    from forgedsl.passes import Request, compile_program

    host = Host(**detect_host())
    compiled = compile_program(
        Request(path=file, profile=profile, overrides=overrides, set_files=set_files, host=host),
        print_after=print_after,
        timings=timings,
    )
    loaded = compiled.loaded
    program = loaded.program
    if program is not None and program.profile and profile == "auto":
        why = gpu_words(host.gpus)
        print(f"profile {program.profile} was chosen by itself: {why}", file=sys.stderr, flush=True)
    print_diagnostics(loaded)
    lowered = compiled.state.job if compiled.state is not None else None
    if lowered is None or loaded.reporter.has_errors:
        return _exit_code({d.code for d in loaded.reporter if d.severity is Severity.ERROR})
    return lowered


def _exit_code(codes: set[str]) -> int:
    """2: the file cannot be read; 4: it is right, but this host is too small; else 1."""
    if UNREADABLE in codes:
        return 2
    return 4 if codes and codes <= TOO_SMALL else 1


def gpu_words(gpus: int) -> str:
    return {0: "this host has no GPU", 1: "this host has one GPU"}.get(
        gpus, f"this host has {gpus} GPUs"
    )


def print_diagnostics(loaded: Any) -> None:
    """Errors and warnings on stderr, as `forgec lint` shows them."""
    from forgedsl.report import full
    from forgedsl.report.style import style_for

    shown = [d for d in loaded.reporter if d.severity is not Severity.INFO]
    if shown:
        print(full.render(shown, loaded.sources, style_for(sys.stderr)), file=sys.stderr)
