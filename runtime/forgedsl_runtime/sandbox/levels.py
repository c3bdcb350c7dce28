"""Isolation levels that this host offers, tested by probes, strongest first.

    namespaces  namespaces of processes, files (a tmpfs) and network; processes are killed together
    bwrap       the same, made by bubblewrap: on some hosts only that may make namespaces
    landlock    no writing, sockets, processes, signals (seccomp); reading Python's own files only
    seccomp     as landlock, but the program can read all files that the user can read

A level is offered only if a probe process was refused everything that the level promises.
"""

from __future__ import annotations

import os
import threading
from functools import cache

from forgedsl_runtime.sandbox.process import Limits, SandboxError, evaluate

LEVELS = ("namespaces", "bwrap", "landlock", "seccomp")
VARIABLE = "FORGE_SANDBOX"
"""environment variable with the weakest level to accept, for calls that name none"""
MARK = "forgedsl_runtime.sandbox"
"""a file that contains this name uses the sandbox"""

PROBE = """
import errno, os, _socket
def refused(act, *args):
    try:
        act(*args)
    except OSError as error:
        return error.errno != errno.EBADF
    return False
def fork():
    os.fork() or os._exit(0)
def connect():
    _socket.socket().connect(("127.0.0.1", 9))
def abstract():
    _socket.socket(_socket.AF_UNIX).connect("\\0forge-probe")
"""
PROMISES = {
    "starting processes": "refused(fork)",
    "writing files": "refused(os.open, '/', os.O_TMPFILE | os.O_WRONLY)",
    "signals": "refused(os.kill, {pid}, 0)",
    "the network": "refused(connect)",
    "reading files": "refused(os.listdir, '/etc')",
}
LIMITS = Limits(wall=20.0, cpu=5)


@cache
def problem(level: str) -> str:
    """Return why this host does not offer a level; "" if it does."""
    promises = {k: v for k, v in PROMISES.items() if k != "reading files" or level != "seccomp"}
    try:
        steps = [("value", text.format(pid=os.getpid())) for text in promises.values()]
        answers = evaluate(PROBE, steps, level=level, limits=LIMITS)
    except SandboxError as error:
        return str(error).partition(f"{level}: ")[2] or str(error)
    broken = [name for i, name in enumerate(promises) if answers.values.get(i) is not True]
    return f"the sandbox failed to block {', '.join(broken)}" if broken else ""


_LOCK = threading.Lock()


def choose(asked: str | None = None) -> str:
    """Return the strongest level of this host, at least `asked` or else FORGE_SANDBOX.

    Raises:
        SandboxError: the host offers no level, or none that is strong enough.
    """
    least = asked or os.environ.get(VARIABLE) or LEVELS[-1]
    if least not in LEVELS:
        raise SandboxError(
            f"there is no sandbox level {least!r}; the levels are {', '.join(LEVELS)}"
        )
    acceptable = LEVELS[: LEVELS.index(least) + 1]
    with _LOCK:  # the first caller probes; others use its result
        for level in acceptable:
            if not problem(level):
                return level
        reasons = "; ".join(f"{level}: {problem(level)}" for level in acceptable)
    weaker = next((x for x in LEVELS if x not in acceptable and not problem(x)), None)
    remedy = f"it offers {weaker}" if weaker else "run on Linux 5.13 or newer, x86-64"
    raise SandboxError(f"this host does not offer the sandbox level {least} ({reasons}); {remedy}")


def description() -> str:
    """Describe the level in force, and why stronger ones are missing.

    Raises:
        SandboxError: as `choose`.
    """
    level = choose()
    missing = [f"{x}: {problem(x)}" for x in LEVELS[: LEVELS.index(level)]]
    return f"sandbox level {level}" + (f" (not {'; '.join(missing)})" if missing else "")
