"""Launcher `ssh`: machines that `ssh NAME` reaches without a password.

    start --ssh, one a machine--> a worker that prints its address (remote.py)

This process holds the other end of a worker's stdin. When stdin closes (by `stop`, or the end of
this process or of the network), SWEEP (temporary_files.py) kills all processes of the run on that
machine.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl_runtime.hosts.addresses import ADDRESS
from forgedsl_runtime.hosts.remote import WORKER, RemoteHosts
from forgedsl_runtime.temporary_files import RUN, SWEEP

TIED = f"""
import ctypes, os, subprocess, sys
sweep, no = ["sh", "-c", {SWEEP!r}, "{RUN}=" + os.environ["{RUN}"]], subprocess.DEVNULL
subprocess.Popen(sweep, stdout=no, stderr=no, env={{"PATH": os.environ["PATH"]}})
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: SIGKILL ends a stopped process, too
"""
COMMAND = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=5",
           "-o", "ServerAliveCountMax=3")  # fmt: skip


class SshHosts(RemoteHosts):
    """Each host is one machine; a run on n hosts uses the first n of the named machines."""

    stdin = subprocess.PIPE
    options: tuple[str, ...] = ()
    python = sys.executable
    mark = ""
    """value of RUN that marks the processes of this run"""

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        names = settings["hosts"]
        if len(names) < count:
            raise LaunchError(
                f"the plan uses {count} hosts, but `launcher = ssh(...)` names {len(names)}"
            )
        self.options = tuple(settings.get("options") or ())
        self.python = settings.get("python") or sys.executable
        self.mark = temp.name
        self.start_workers([(name, self._address(name)) for name in names[:count]], logs)

    def worker(self, name: str, address: str, path: Path) -> list[str]:
        environment = [f"{ADDRESS}={address}", f"{RUN}={self.mark}"]
        words = ["env", *environment, self.python, "-c", TIED + WORKER, str(path)]
        return [*self.run_prefix(name), shlex.join(words)]

    def run_prefix(self, name: str) -> list[str]:
        return [*COMMAND, *self.options, name]

    def _address(self, name: str) -> str:
        """Return the address of the machine, resolved from the host name that ssh uses."""
        command = ["ssh", *self.options, "-G", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        match = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        try:
            return socket.gethostbyname(match[1] if match else name)
        except OSError as error:
            raise LaunchError(f"`launcher = ssh(...)` names {name}: {error}") from error
