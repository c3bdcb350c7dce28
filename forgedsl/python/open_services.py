"""The life of a Session: start services, run calls on them, end them.

    open --> calls: submit(coroutine) --> Work, on a thread with an event loop of its own --> close

`close` waits for calls that have not ended; after an exception or an interrupt they are cancelled.
Calls with one `turn` run one after another, in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from forgedsl.cli.waiting import waiting
from forgedsl.notebook import quiet_widgets
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python
from forgedsl.python.work import FAILED, Unasked, Work, as_run_error, ending, settle

if TYPE_CHECKING:
    from forgedsl.lower.job import Job
    from forgedsl_runtime.session import Services

R = TypeVar("R")
CLOSED = "this Session is closed: open another with pipeline.session()"


@all_speak_python
class OpenServices:
    """The services of a job, from `open` to `close`."""

    def __init__(
        self, job: Job, make_folder: Callable[[], Path], release: Callable[[Path], None]
    ) -> None:
        self.job = job
        self._folder: Path | None = None
        self._make_folder = make_folder
        self._release = release
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._services: Services | None = None
        self._turns: dict[str, asyncio.Lock] = {}
        self._unasked = Unasked()

    @property
    def folder(self) -> Path:
        """Its run folder, which is made when the Session opens."""
        if self._folder is None:
            raise PipelineError("this Session has no folder yet: it is made when it opens")
        return self._folder

    def open(self) -> Self:
        """Start the services and wait until they are ready. `close` ends them."""
        self._check_new()
        try:
            with waiting(self._starting):
                self._begin().result()
        except BaseException:
            self._ended()
            raise
        return self

    def close(self, status: str = "done") -> None:
        """Wait for calls that have not ended, stop all processes, and write report.html. The error
        of a call for whose result nobody has asked is raised then. With another status, and after
        an interrupt of the wait, calls that have not ended are cancelled."""
        if status != "done":
            self._close((FAILED, status, self._unasked.cut()))
            return
        try:
            self._unasked.wait()
        except BaseException as error:
            self._close(self._cut(error))
            raise
        lost = self._unasked.any_error()
        self._close(ending(lost))
        if lost is not None:
            raise lost

    def _cut(self, error: BaseException) -> tuple[int, str, str]:
        """Return how the Session ends with this error, which gets a note about the calls that are
        cancelled."""
        code, status, message = ending(error)
        if cut := self._unasked.cut():
            error.add_note(cut)
        return code, status, "; ".join(filter(None, (message, cut)))

    def _close(self, how: tuple[int, str, str]) -> None:
        try:
            if self._services is not None:
                self._end(*how).result()
        finally:
            self._ended()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close(self._cut(error))

    async def __aenter__(self) -> Self:
        self._check_new()
        try:
            with waiting(self._starting):
                await self._begin()
        except BaseException:
            self._ended()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self._close_awaited(self._cut(error))
            return
        try:
            await asyncio.to_thread(self._unasked.wait)
        except BaseException as interrupt:
            await self._close_awaited(self._cut(interrupt))
            raise
        lost = self._unasked.any_error()
        await self._close_awaited(ending(lost))
        if lost is not None:
            raise lost

    async def _close_awaited(self, how: tuple[int, str, str]) -> None:
        try:
            if self._services is not None:
                await self._end(*how)
        finally:
            self._ended()

    @property
    def _starting(self) -> str:
        return f"starting {', '.join(self.job.services)}"

    def _check_new(self) -> None:
        if self._loop.is_closed():
            raise PipelineError(CLOSED)
        if self._thread.is_alive():
            raise PipelineError("this Session is already open")
        self._folder = self._make_folder()

    def _begin(self) -> Work[None]:
        self._thread.start()
        return Work(asyncio.run_coroutine_threadsafe(self._opened(), self._loop))

    async def _opened(self) -> None:
        from forgedsl_runtime.session import open_services

        quiet_widgets()
        (self.folder / "session.json").write_text("{}", encoding="utf-8")
        self._services = await open_services(self.job, self.folder)

    def _end(self, code: int, status: str, message: str) -> Work[None]:
        assert self._services is not None
        closing = self._services.close(code, status, message)
        return Work(asyncio.run_coroutine_threadsafe(closing, self._loop))

    def _ended(self) -> None:
        """Stop the thread, and release the lock of the run folder."""
        self._services = None
        if self._folder is not None:
            self._release(self._folder)
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(settle(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def submit(
        self, work: Callable[[], Coroutine[Any, Any, R]], turn: str = "", *, handle: str = ""
    ) -> Work[R]:
        """Begin a call of the handle `turn` or `handle`; calls with one `turn` run one after
        another. If an earlier call of the handle failed, and nobody can ask for its result any
        more, its error is raised."""
        services = self._opened_services()
        self._unasked.check(turn or handle)

        async def in_turn() -> R:
            services.check()
            if not turn:
                return await work()
            async with self._turns.setdefault(turn, asyncio.Lock()):
                await asyncio.sleep(0)  # the error of the call before is known then
                self._unasked.check(turn)
                return await work()

        future = asyncio.run_coroutine_threadsafe(as_run_error(in_turn()), self._loop)
        return Work(future, self._unasked, turn or handle)

    def _opened_services(self) -> Services:
        if self._services is None:
            if self._loop.is_closed():
                raise PipelineError(CLOSED)
            raise PipelineError("this Session is not open: use `with pipeline.session() as s:`")
        return self._services
