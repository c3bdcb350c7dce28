"""Ranks of one process: threads whose collective calls wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Meeting:
    """Gathers an object from each of `world` threads, on all of them."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._said: list[Any] = [None] * world
        self._wait = threading.Barrier(world)

    def together(self, rank: int) -> Callable[[Any], list[Any]]:
        """Return the collective call of a rank."""

        def gathered(mine: Any) -> list[Any]:
            self._said[rank] = mine
            self._wait.wait(30)
            found = list(self._said)
            self._wait.wait(30)
            return found

        return gathered

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return what `work` returns on each rank, each in a thread of its own."""
        with ThreadPoolExecutor(self._world) as pool:
            return list(pool.map(work, range(self._world)))
