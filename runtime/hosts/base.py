"""What a launcher does: it makes hosts be there, tells Monarch of them, and ends them.

    start(count) --> attach(which) --> Monarch's mesh of these hosts, to spawn processes on
                     lost()        --> which are gone, and what is known of it       stop()

To add a launcher: docs/design/launchers.md.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forgedsl.runtime.hosts.addresses import LOOPBACK
from forgedsl.runtime.upstream.monarch import this_host


class Hosts:
    """This host, as it is; a launcher overrides what it does otherwise."""

    def __init__(self) -> None:
        self.count = 1
        self.gone: set[int] = set()
        """hosts that were lost, as far as the run has taken note of it"""

    def address(self) -> str:
        """What its processes reach the controller by."""
        return LOOPBACK

    def start(self, count: int, settings: Mapping[str, Any], temp: Path, logs: Path) -> None:
        """Make so many hosts be there.

        `settings` are what the launcher is written with, `temp` is a folder that only this run
        uses and that goes with it, `logs` is for what hosts print.

        Raises:
            LaunchError: it cannot; with place and remedy.
        """

    def attach(self, which: range) -> Any:
        """Monarch's mesh of these hosts, for process meshes to be spawned on."""
        return this_host()

    def lost(self) -> dict[int, str]:
        """The hosts that are gone, each with what is known of its end."""
        return {}

    def kill(self, on: range, pids: Sequence[int]) -> None:
        """Kill processes of these hosts: a rank that lost a peer only waits."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End what `start` started; everything on it has ended, or is to."""
