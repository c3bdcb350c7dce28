"""From a .forge file to a sealed job on this host, for `forgec run`.

    FILE.forge, profile, overrides --load--> Program --lower--> Job + files to copy beside it

Diagnostics go to stderr. A profile that was chosen because of the host is said first of all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forgedsl.lower.build import Lowered


def compile_file(file: Path, *, profile: str, overrides: tuple[str, ...]) -> Lowered | None:
    """The lowered program; None when it has errors, which are printed."""
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
    return None if loaded.reporter.has_errors else lowered


def gpu_words(gpus: int) -> str:
    return {0: "this host has no GPU", 1: "this host has one GPU"}.get(
        gpus, f"this host has {gpus} GPUs"
    )


def print_diagnostics(loaded: Any) -> None:
    """Errors and warnings on stderr, as `forgec lint` shows them."""
    from forgedsl.diagnostics import Severity
    from forgedsl.report import full

    shown = [d for d in loaded.reporter if d.severity is not Severity.INFO]
    if shown:
        print(full.render(shown, loaded.sources), file=sys.stderr)
