"""Deadlines of thousands of calls, with one timer for all calls of the same length.

    with deadline(30.0) as open_call: await call     --late--> TimeoutError, `open_call.expired`

It does what `asyncio.timeout` does, with fewer timers. `asyncio.timeout` makes a timer for each
call and cancels it again; that took a tenth of the controller's time. All calls of a service have
the same time limit, so the oldest call is always the first to be late, and one timer for it is
enough.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary


class OpenCall:
    """A call with a deadline, from its start to its end."""

    __slots__ = ("_cancelling", "_line", "_loop", "expired", "task", "when")

    def __init__(self, line: _Line, loop: asyncio.AbstractEventLoop) -> None:
        self._line, self._loop = line, loop
        self.expired = False
        """True once the deadline has passed before the call ended"""

    def __enter__(self) -> Self:
        line, loop = self._line, self._loop
        task = asyncio.current_task(loop)
        assert task is not None
        self.task: asyncio.Task[Any] | None = task
        self._cancelling = task.cancelling()
        self.when = loop.time() + line.seconds
        line.add(self, loop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self.task = self.task, None
        assert task is not None
        self._line.ended()
        if self.expired and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class _Line:
    """Open calls with the same time limit, the oldest first."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls: deque[OpenCall] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: OpenCall, loop: asyncio.AbstractEventLoop) -> None:
        self._calls.append(call)
        if self._timer is None:
            self._timer = loop.call_at(call.when, self._late, loop)

    def ended(self) -> None:
        """Forget the oldest calls that have ended. No timer stays without an open call."""
        calls = self._calls
        while calls and calls[0].task is None:
            calls.popleft()
        if not calls and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the tasks of calls that are late, and wait for the next one."""
        calls, now = self._calls, loop.time()
        while calls and (calls[0].task is None or calls[0].when <= now):
            call = calls.popleft()
            if call.task is not None:
                call.expired = True
                call.task.cancel()
        self._timer = loop.call_at(calls[0].when, self._late, loop) if calls else None


# A line must not refer to its loop: the reference would keep the loop alive.
_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, _Line]] = WeakKeyDictionary()


def deadline(seconds: float) -> OpenCall:
    """Return a context manager that ends its block after `seconds`.

    Raises:
        TimeoutError: when the block is left, if its deadline has passed.
    """
    loop = asyncio.get_running_loop()
    lines = _lines.get(loop)
    if lines is None:
        lines = _lines[loop] = {}
    line = lines.get(seconds)
    if line is None:
        line = lines[seconds] = _Line(seconds)
    return OpenCall(line, loop)
