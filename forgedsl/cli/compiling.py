"""Output and exit codes of commands that compile a file.

Diagnostics go to stderr. If a profile was chosen because of the host, that is printed first.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Severity

if TYPE_CHECKING:
    from pathlib import Path

    from forgedsl.api import Loaded
    from forgedsl.sizes.hosts import Host


UNREADABLE = "S016"
"""code of the diagnostic for a file that cannot be read: bad usage, not an error in the file"""
TOO_SMALL = frozenset({"P203", "P205"})
"""codes of diagnostics that say: the plan needs more GPUs or memory than this host has"""


def exit_code(loaded: Loaded) -> int:
    """Return the exit code of a failed compilation: 2 if the file cannot be read, 4 if it is
    correct but the host is too small, else 1."""
    codes = {d.code for d in loaded.reporter if d.severity is Severity.ERROR}
    if UNREADABLE in codes:
        return 2
    return 4 if codes and codes <= TOO_SMALL else 1


def unreadable(file: Path) -> str:
    """Return why a .forge file cannot be read, with a file that may be meant; "" if it can."""
    from forgedsl.diagnostics import Reporter
    from forgedsl.syntax import read_source

    reporter = Reporter()
    read_source(file, str(file), reporter)
    return "; ".join(filter(None, (t for d in reporter for t in (d.message, d.help))))


def say_profile(loaded: Loaded, asked: str, host: Host) -> None:
    """Print on stderr which profile was chosen automatically, and why."""
    from forgedsl.plan.host import resolve_host

    program = loaded.program
    if program is None or not program.profile or asked != "auto":
        return
    known = resolve_host(program, host)
    if known.said == f"assumed: profile {program.profile}":
        # The profile was selected by its `when` on the detected host. Name that host, not the one
        # that the profile's `cluster` declares.
        known = host
    who = "this host" if known.said == "this host" else f"the host ({known.said})"
    count = {0: "no GPU", 1: "one GPU"}.get(known.gpus, f"{known.gpus} GPUs")
    text = f"profile {program.profile} was selected automatically: {who} has {count}"
    print(text, file=sys.stderr, flush=True)


def print_planned(loaded: Loaded, asked: str, host: Host) -> None:
    """Print the chosen profile, the diagnostics, and how to plan for another host."""
    say_profile(loaded, asked, host)
    print_diagnostics(loaded)
    if exit_code(loaded) == 4 and host.said == "this host":
        print("planned for this host; to plan for another one: --host 8xH200", file=sys.stderr)


def print_diagnostics(loaded: Any) -> None:
    """Print errors and warnings on stderr, in the format of `forgec lint`."""
    from forgedsl.report import full
    from forgedsl.report.style import style_for

    shown = [d for d in loaded.reporter if d.severity is not Severity.INFO]
    if shown:
        print(full.render(shown, loaded.sources, style_for(sys.stderr)), file=sys.stderr)
