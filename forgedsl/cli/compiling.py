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


def compile_file(file: Path, *, profile: str, overrides: tuple[str, ...]) -> Lowered | int:
    """The lowered program, or the exit code after its errors were printed."""
    from forgedsl import api
    from forgedsl.cli.host import detect_host
    from forgedsl.hir.context import Host as ProgramHost
    from forgedsl.lower.build import lower
    from forgedsl.plan.host import Host

    found = detect_host()
    loaded = api.load(file, profile=profile, overrides=overrides, host=ProgramHost(**found))
    program, lowered = loaded.program, None
    if program is not None and program.profile and profile == "auto":
        why = gpu_words(found["gpus"])
        print(f"profile {program.profile} was chosen by itself: {why}", file=sys.stderr, flush=True)
    if program is not None and not loaded.reporter.has_errors:
        lowered = lower(
            program,
            reporter=loaded.reporter,
            sources=loaded.sources,
            base_dir=file.parent,
            host=Host(**found),
        )
    print_diagnostics(loaded)
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
