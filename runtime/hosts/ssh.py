"""Launcher `ssh`: machines that `ssh NAME` reaches without a password.

    start --ssh, one a machine--> a worker that says where it listens (remote.py)

What this process is to a worker is the other end of its input: when that ends, by `stop`, with this
process or with the network, the worker ends itself and all that it has started.
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
from forgedsl.runtime.hosts.addresses import ADDRESS
from forgedsl.runtime.hosts.remote import WORKER, RemoteHosts

TIED = """
import os, signal, sys, threading
os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
def last():
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=last, daemon=True).start()
"""
COMMAND = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=5",
           "-o", "ServerAliveCountMax=3")  # fmt: skip


class SshHosts(RemoteHosts):
    """Each host is a machine; the first ones of those that are named."""

    stdin = subprocess.PIPE
    options: tuple[str, ...] = ()
    python = sys.executable

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        names = settings["hosts"]
        if len(names) < count:
            raise LaunchError(
                f"the plan uses {count} hosts, and `launcher = ssh(...)` names {len(names)}"
            )
        self.options = tuple(settings.get("options") or ())
        self.python = settings.get("python") or sys.executable
        self.begin_on([(name, self._address(name)) for name in names[:count]], logs)

    def worker(self, name: str, address: str, path: Path) -> list[str]:
        words = ["env", f"{ADDRESS}={address}", self.python, "-c", TIED + WORKER, str(path)]
        return [*self.beside(name), shlex.join(words)]

    def beside(self, name: str) -> list[str]:
        return [*COMMAND, *self.options, name]

    def _address(self, name: str) -> str:
        """What the machine is dialled by: that which ssh itself takes for the name."""
        command = ["ssh", *self.options, "-G", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        match = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        try:
            return socket.gethostbyname(match[1] if match else name)
        except OSError as error:
            raise LaunchError(f"`launcher = ssh(...)` names {name}: {error}") from error
