"""Base of launchers: a launcher starts hosts, attaches them to Monarch, and stops them.

    start(count) --> attach(which) --> Monarch's mesh of these hosts, to spawn processes on
                     lost_hosts()  --> lost hosts, with the reason       stop()

To add a launcher: docs/design/launchers.md.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forgedsl_runtime.hosts.addresses import LOOPBACK
from forgedsl_runtime.upstream.monarch import this_host


class Hosts:
    """The launcher for this host only; base class of the others."""

    def __init__(self) -> None:
        self.count = 1
        self.gone: set[int] = set()
        """lost hosts that the run has noticed"""

    def address(self) -> str:
        """Return the address at which the hosts' processes reach the controller."""
        return LOOPBACK

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        """Start `count` hosts. `settings` are the launcher's settings in the job. `temp` is a
        folder of this run only, removed with it. `logs` is for the output of hosts.

        Raises:
            LaunchError: they cannot be started; with place and remedy.
        """

    def attach(self, which: range) -> Any:
        """Return Monarch's mesh of these hosts, on which process meshes are spawned."""
        return this_host()

    def lost_hosts(self) -> dict[int, str]:
        """Return lost hosts, each with the known reason."""
        return {}

    def kill(self, on: range, pids: Sequence[int]) -> None:
        """Kill processes on these hosts: a rank that lost a peer would wait forever."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stop what `start` started. Processes on the hosts that still run are killed."""
