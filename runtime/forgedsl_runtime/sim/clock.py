"""Simulated time for asyncio: instead of waiting, the clock jumps to the next timer.

An event loop asks its selector to wait until the next timer is due; this selector returns at once
and advances the clock. So simulated hours take only as long as their Python code, timers fire in
order, and a wait that nothing can end is an error instead of a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits for another one."""


class _Selector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("deadlock: every task waits for another one")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop that runs timers at once, in order."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on simulated time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
