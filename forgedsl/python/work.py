"""Calls of a Session that run on its thread while the caller goes on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from collections.abc import Generator as Iterating
from concurrent.futures import CancelledError, Future, wait
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from forgedsl.cli.waiting import waiting
from forgedsl.errors import RunError, expect

R = TypeVar("R")
NO_RESULT = "a call returns a Work, not its result: call .result(), or await it"
INTERRUPTED, FAILED = 130, 5
"""exit codes of a run that ends so"""
ROUNDS = 100
"""most turns of the loop in which cancelled calls end"""


class Unasked:
    """The calls of a Session that have not ended, and those that have failed and for whose result
    nobody has asked, with the names of their handles."""

    def __init__(self) -> None:
        self._calls: dict[Future[Any], tuple[str, weakref.ref[Work[Any]]]] = {}
        self._running: dict[Future[Any], str] = {}

    def add(self, work: Work[Any], future: Future[Any], handle: str) -> None:
        self._calls[future] = handle, weakref.ref(work)
        self._running[future] = handle
        future.add_done_callback(self._ended)

    def wait(self) -> None:
        """Wait until all calls have ended."""
        while running := self._not_ended():
            with waiting(f"waiting for calls of {', '.join(sorted({*running.values()}))}"):
                wait(running)

    def cut(self) -> str:
        """Return what to say about the calls that have not ended and are cancelled now; "" if all
        have ended."""
        running = self._not_ended().values()
        names = ", ".join(sorted({*running}))
        calls = "1 call that had" if len(running) == 1 else f"{len(running)} calls that had"
        return f"cancelled {calls} not ended ({names})" if running else ""

    def _not_ended(self) -> dict[Future[Any], str]:
        return {call: name for call, name in self._running.copy().items() if not call.done()}

    def _ended(self, future: Future[Any]) -> None:
        self._running.pop(future, None)
        if future.cancelled() or future.exception() is None:
            self.asked(future)

    def asked(self, future: Future[Any]) -> None:
        """Forget a call: its caller has the result or the error."""
        self._calls.pop(future, None)

    def check(self, handle: str) -> None:
        """Raise the error of a call of this handle, once. Only calls whose Work is gone count: of
        the others the caller may still ask for the result."""
        error = self._first(lambda name, work: name == handle and work is None)
        if error is not None:
            raise error

    def any_error(self) -> BaseException | None:
        """Return the error of any call, once."""
        return self._first(lambda name, work: True)

    def _first(self, wanted: Callable[[str, Work[Any] | None], bool]) -> BaseException | None:
        for future, (handle, work) in self._calls.copy().items():
            if future.done() and not future.cancelled() and wanted(handle, work()):
                self.asked(future)
                if (error := future.exception()) is not None:
                    return error
        return None


class Work(Generic[R]):
    """A call that has begun: `await` it in a coroutine, or ask for its `result()`."""

    def __init__(self, future: Future[R], unasked: Unasked | None = None, handle: str = "") -> None:
        self._future = future
        self._unasked = Unasked() if unasked is None else unasked
        self._unasked.add(self, future, handle)

    def result(self, timeout: float | None = None) -> R:
        """Wait, at most `timeout` seconds. An interrupt ends the wait and not the call.

        Raises:
            TimeoutError: the call has not ended yet, and goes on.
            RunError: the Session was closed meanwhile, or a service failed.
        """
        expect(timeout, int | float | None, "`timeout` must be a number of seconds")
        try:
            found = self._future.result(timeout)
        except CancelledError as error:
            raise RunError(
                "the Session was closed before this call had ended, and cancelled it"
            ) from error
        except TimeoutError as error:
            if self._future.done():  # the call itself raised it
                self._unasked.asked(self._future)
                raise
            raise TimeoutError(f"the call has not ended after {timeout:g} s; it goes on") from error
        except Exception:
            self._unasked.asked(self._future)
            raise
        return found

    def __repr__(self) -> str:
        return f"<Work: {'done' if self.done else 'not done yet'}; result() waits for it>"

    @property
    def done(self) -> bool:
        return self._future.done()

    def __await__(self) -> Iterating[Any, None, R]:
        self._unasked.asked(self._future)
        return asyncio.wrap_future(self._future).__await__()

    if not TYPE_CHECKING:  # a type checker says by itself that a Work has none of these

        def _refuse(self, *_: object) -> NoReturn:
            raise TypeError(NO_RESULT)

        __iter__ = __aiter__ = __getitem__ = __len__ = __float__ = _refuse

        def __bool__(self) -> bool:
            return True

        def __format__(self, form: str) -> str:
            return self._refuse() if form else repr(self)

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse an attribute of the result; names with a `_` are asked for by notebooks."""
            raise AttributeError(name if name.startswith("_") else f"{name}: {NO_RESULT}")


def ending(error: BaseException | None) -> tuple[int, str, str]:
    """Return exit code, status and message of a Session that ends with this error."""
    if error is None:
        return 0, "done", ""
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return INTERRUPTED, "interrupted", ""
    return FAILED, "failed", f"{type(error).__name__}: {error}"


async def settle() -> None:
    """Cancel tasks that still wait on this loop, such as for answers of ended processes, and those
    that begin because others end."""
    mine = asyncio.current_task()
    for _ in range(ROUNDS):
        rest = [task for task in asyncio.all_tasks() if task is not mine]
        if not rest:
            return
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
