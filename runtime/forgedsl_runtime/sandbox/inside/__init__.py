"""Code of a sandbox process: confine the process, then run the program.

A bare interpreter without site-packages starts here. So this package imports only its own modules,
by relative imports, and little of the standard library: each sandbox process spends time on each
import.

    stdin  {role, level, parent, read, files, inodes, processes, limits, ...}, marshalled
    stdout "ready" once the limits are in force, or why they are not; then what the role writes

    calls    code, steps: runs a program, then evaluates expressions in its names
    program  code, link: runs a program, and answers the judge at the other end of `link`
    judge    cases, imports, classes, link: executes cases, and writes for each whether it holds
"""

from __future__ import annotations

import marshal
import os

from . import calls, judge, kernel, program

TYPE_CHECKING = False  # `typing` at run time costs more than all the other imports
if TYPE_CHECKING:
    from typing import Any


ROLES = {"calls": calls.run, "program": program.run, "judge": judge.run}


def main() -> None:
    """Serve one request, then exit without the interpreter's clean-up."""
    spec = marshal.loads(_read_all(0))
    result = os.dup(1)
    try:
        _confine(spec)
        os.write(result, b"ready\n")
    except OSError as error:
        os.write(result, f"{error.strerror or error}\n".encode())
        os._exit(1)
    ROLES[spec["role"]](spec, result)
    os._exit(0)


def _read_all(file: int) -> bytes:
    parts = []
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _confine(spec: dict[str, Any]) -> None:
    level, limits = spec["level"], dict(spec["limits"])
    private = level == "namespaces"
    if level != "bwrap":  # bwrap does this itself
        kernel.die_with_parent()
        if os.getppid() != spec["parent"]:
            os._exit(1)
    silence = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.close(silence)
    if private:
        from . import namespaces

        namespaces.enter(spec)
    else:
        # NPROC counts all processes of the user, most of which are not ours.
        limits.pop("NPROC")
    kernel.drop_privileges()
    kernel.hide()
    if level == "landlock":
        kernel.restrict_to_reading(spec["read"])
    kernel.limit(limits)
    kernel.filter_calls(alone=not (private and spec["processes"]), private=private)
