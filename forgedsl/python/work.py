"""Calls of a Session that run on its thread while the caller goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from collections.abc import Generator as Iterating
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from forgedsl.errors import RunError, expect

R = TypeVar("R")


class Work(Generic[R]):
    """A call that has begun: `await` it in a coroutine, or ask for its `result()`."""

    def __init__(self, future: Future[R]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> R:
        """Wait, at most `timeout` seconds. An interrupt ends the wait and not the call.

        Raises:
            TimeoutError: the call has not ended yet, and goes on.
            RunError: the Session was closed meanwhile, or a service failed.
        """
        expect(timeout, int | float | None, "`timeout` must be a number of seconds")
        try:
            return self._future.result(timeout)
        except CancelledError as error:
            raise RunError("the Session was closed before this call had ended") from error
        except TimeoutError as error:
            if self._future.done():  # the call itself raised it
                raise
            raise TimeoutError(f"the call has not ended after {timeout:g} s; it goes on") from error

    def __repr__(self) -> str:
        return f"<Work: {'done' if self.done else 'not done yet'}; result() waits for it>"

    @property
    def done(self) -> bool:
        return self._future.done()

    def __await__(self) -> Iterating[Any, None, R]:
        return asyncio.wrap_future(self._future).__await__()


async def settle() -> None:
    """Cancel tasks that still wait on this loop, such as for answers of ended processes."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def as_run_error(call: Coroutine[Any, Any, R]) -> R:
    """Await a call, and raise the failure of a service as a RunError, as a run does."""
    from forgedsl_runtime.endpoints import ServiceError

    try:
        return await call
    except ServiceError as error:
        found = error.failure
        raise RunError(found.message, origin=found.origin, service=found.service) from error
