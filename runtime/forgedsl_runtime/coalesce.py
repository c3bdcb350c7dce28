"""Combine many small awaited calls into few large ones.

Items of one turn of the event loop go out together. While all calls that may run are in flight, new
items wait. When one returns, the waiting items go out, divided among the calls that may start.
There is no timer, so a lone item is not delayed, and a busy service gets large batches.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Coalescer(Generic[T, R]):
    """Batch items: `await submit(item)` runs `call(items) -> results`, at most `parallel` calls at
    once, each with at most `limit` items. Items are divided evenly among the calls that may start.
    """

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        parallel: int = 1,
        limit: int = 4096,
    ) -> None:
        self._call = call
        self.limit = limit
        self._idle = parallel
        self._dispatch_is_due = False
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._num_in_flight = 0
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: T, *, first: bool = False) -> R:
        return await self.post(item, first=first)

    @property
    def num_in_flight(self) -> int:
        """Number of items in calls that have not returned yet."""
        return self._num_in_flight

    @property
    def num_waiting(self) -> int:
        """Number of items that are not sent yet."""
        return len(self._waiting)

    def post(self, item: T, *, first: bool = False) -> asyncio.Future[R]:
        """Queue `item` and return its future at once. With `first`, it goes ahead of the waiting
        items."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.insert(0 if first else len(self._waiting), (item, future))
        if self._idle and not self._dispatch_is_due:
            self._dispatch_is_due = True
            loop.call_soon(self._dispatch)
        return future

    def _dispatch(self) -> None:
        self._dispatch_is_due = False
        while self._idle and self._waiting:
            share = min(self.limit, math.ceil(len(self._waiting) / self._idle))
            batch, self._waiting = self._waiting[:share], self._waiting[share:]
            batch = [(item, future) for item, future in batch if not future.done()]
            if not batch:
                continue
            self._idle -= 1
            self._num_in_flight += len(batch)
            task = asyncio.create_task(self._send(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _send(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._call([item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._idle += 1
            self._num_in_flight -= len(batch)
            self._dispatch()
