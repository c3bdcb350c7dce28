"""Confines a process that calls user code only to see what it returns.

    confine() -> no file written, no process started, no connection: the kernel refuses (seccomp)
              -> the attempt ends the process with exit code REFUSED, so that no `except` hides it

In a run, rewards and environments may do all this; a check before a run must not have effects.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl_runtime.sandbox.inside import kernel

REFUSED = 87
"""exit code of a process that tried something with an effect"""
MEMORY = 8 << 30
"""bytes of data that the process may have"""
PREFIXES = (
    "subprocess.", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.system",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.startfile", "os.setxattr", "os.utime", "shutil.", "tempfile.",
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
    "socket.gethostby", "urllib.Request", "webbrowser.", "pty.spawn", "signal.pthread_kill",
)  # fmt: skip
"""audit events that have an effect outside of the process (docs.python.org, audit events table)"""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
INTERNET = (2, 10)
"""AF_INET, AF_INET6"""


def confine() -> None:
    """Refuse effects from now on; this cannot be undone.

    Raises:
        LaunchError: this host cannot confine a process.
    """
    sys.dont_write_bytecode = True
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.filter_calls(alone=True, private=False)
    except OSError as error:
        raise LaunchError(f"this host cannot confine a process: {error}") from error
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        refused = isinstance(args[2], int) and bool(args[2] & WRITING)
    elif event == "socket.__new__":
        refused = args[1] in INTERNET
    elif event == "sqlite3.connect":
        refused = args[0] != ":memory:"
    else:
        refused = event.startswith(PREFIXES)
    if refused:
        os._exit(REFUSED)
