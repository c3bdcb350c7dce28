"""Simulated time: a heap of events, and processes as generators that say what they wait for.

    yield 2.5      go on in 2.5 seconds
    yield signal   go on when somebody fires it

Frequent things (completions, rewards) are plain callbacks, `World.at`; rare ones (steps, transfers
of weights, evaluations) read better as processes, `World.spawn`.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Generator, Iterator
from typing import Any

Process = Generator["float | Signal", None, None]


class Signal:
    """Happens once; whoever waits for it goes on."""

    __slots__ = ("fired", "waiting")

    def __init__(self) -> None:
        self.fired = False
        self.waiting: list[Process] = []


class World:
    """The clock. `events` counts what has happened."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action(*args)` at `time`, after what was ordered for that time before."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, action, args))

    def spawn(self, process: Process) -> None:
        self._go_on(process)

    def fire(self, signal: Signal) -> None:
        signal.fired = True
        waiting, signal.waiting = signal.waiting, []
        for process in waiting:
            self._go_on(process)

    def run(self, over: Callable[[], bool]) -> bool:
        """Let time pass until `over()`; False if nothing is left to happen before that."""
        heap, pop = self._heap, heapq.heappop
        collecting = gc.isenabled()
        gc.disable()  # nothing here is cyclic, and a run makes millions of objects
        try:
            while not over():
                if not heap:
                    return False
                self.now, _, action, args = pop(heap)
                self.events += 1
                action(*args)
        finally:
            if collecting:
                gc.enable()
        return True

    def _go_on(self, process: Process) -> None:
        for wanted in process:
            if isinstance(wanted, Signal):
                if wanted.fired:
                    continue
                wanted.waiting.append(process)
            else:
                self.at(self.now + wanted, self._go_on, process)
            return


class Server:
    """Does one thing at a time, in order: a trainer's worker thread, the controller's loop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.free = 0.0
        self.busy = 0.0

    def book(self, seconds: float) -> float:
        """Take the next `seconds` it has; when they are over."""
        self.free = max(self.free, self.world.now) + seconds
        self.busy += seconds
        return self.free

    def work(self, seconds: float) -> Iterator[float]:
        """`yield from` in a process: wait for one's turn and the work itself."""
        yield self.book(seconds) - self.world.now
