"""Calls of actors over one shared reply port.

    Callee.ask(endpoint, args) --start_call(number, endpoint, args)--> Answering, its endpoint
         ^- future of the number <-- port <--(number, rank, value)--'

Monarch's own `call` leaks 0.4 KiB per answer in both processes, so answers come through a port
here. Monarch still reports deaths: each callee has one pending call of Monarch, `register_port`. It
is never answered, and fails when the actor dies.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from monarch._rust_bindings.monarch_hyperactor.pytokio import PythonTask
from monarch.actor import Actor, Channel, Port, concurrent_endpoint, current_rank, endpoint

KEYS = itertools.count()


@dataclass(slots=True)
class Reply:
    """Replaces Monarch's port: an endpoint sends its answer through it."""

    port: Any
    number: int
    rank: int

    def send(self, value: Any) -> None:
        self.port.send((self.number, self.rank, value, None))

    def exception(self, error: Exception) -> None:
        self.port.send((self.number, self.rank, None, error))


class Answering(Actor):
    """An actor whose concurrent endpoints a `Callee` can call."""

    def __init__(self) -> None:
        self.rank: int = current_rank().rank
        self._ports: dict[int, asyncio.Future[Any]] = defaultdict(asyncio.Future)

    @concurrent_endpoint
    async def register_port(self, key: int, port: Port[Any]) -> None:
        """Register the port for answers to requests with this key; never returns."""
        self._ports[key].set_result(port)
        await asyncio.Event().wait()

    @endpoint(instrument=False)
    async def start_call(self, key: int, number: int, name: str, args: tuple[Any, ...]) -> None:
        """Start an endpoint, as Monarch would."""
        reply = Reply(await self._ports[key], number, self.rank)
        await getattr(type(self), name)._method(self, reply, *args)


def is_picklable(error: Exception) -> bool:
    """True if an error can be pickled and read again. An error that cannot would be lost, and its
    caller would wait forever (torch.compile's errors hold whole modules)."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # `__reduce__` of a class may raise anything
        return False
    return True


@dataclass(slots=True)
class PendingCall:
    """A pending call, and the answers so far."""

    answer: asyncio.Future[list[Any]]
    found: dict[int, Any] = field(default_factory=dict)


class Callee:
    """One actor of a mesh, or all of them."""

    def __init__(self, actor: Any, ranks: int) -> None:
        self._actor, self._ranks = actor, ranks
        self._key, self._numbers = next(KEYS), itertools.count()
        self._asked: dict[int, PendingCall] = {}
        self._end_of_actor: asyncio.Future[Any] | None = None
        self._received: deque[Any] = deque()
        self._read_scheduled = False

    async def ask(self, name: str, *args: Any) -> list[Any]:
        """Return the answers of all ranks to an endpoint, in rank order.

        Raises:
            ActorError, SupervisionError: as Monarch's calls; the first error of a rank.
        """
        getattr(self._actor, name)  # raise AttributeError here, not in the actor
        gone = self._end_of_actor = self._end_of_actor or self._begin()
        if gone.done():
            gone.result()
        number, asked = next(self._numbers), PendingCall(asyncio.get_running_loop().create_future())
        self._asked[number] = asked
        try:
            self._actor.start_call.broadcast(self._key, number, name, args)
            return await asked.answer
        finally:
            del self._asked[number]

    def _begin(self) -> asyncio.Future[Any]:
        self._port, self._receiver = Channel[Any].open()
        PythonTask.from_coroutine(self._pump(asyncio.get_running_loop())).spawn_handle()
        stays = self._actor.register_port.call(self._key, self._port)
        gone: asyncio.Future[Any] = asyncio.ensure_future(stays)
        gone.add_done_callback(self._end)
        return gone

    async def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive messages on a thread of Monarch. Awaiting each message on the event loop would be
        as slow as Monarch's own calls."""
        while True:
            self._received.append(await self._receiver._receiver.recv_task())
            if loop.is_closed() or (self._end_of_actor is not None and self._end_of_actor.done()):
                return
            if not self._read_scheduled:
                self._read_scheduled = True
                loop.call_soon_threadsafe(self._read)

    def _read(self) -> None:
        self._read_scheduled = False  # before reading, so that no later message is missed
        while self._received:
            try:
                number, rank, value, error = self._receiver._process(self._received.popleft())
            except Exception as failure:  # its caller is unknown, so all pending calls fail
                self._fail(failure)
                continue
            asked = self._asked.get(number)
            if asked is None or asked.answer.done():
                continue  # its caller was cancelled, or has heard of another rank's error
            asked.found[rank] = value
            if error is not None:
                asked.answer.set_exception(error)
            elif len(asked.found) == self._ranks:
                asked.answer.set_result([asked.found[rank] for rank in sorted(asked.found)])

    def _end(self, gone: asyncio.Future[Any]) -> None:
        """Handle the end of `register_port`: an actor has died, or the loop ends."""
        if not gone.cancelled() and (error := gone.exception()) is not None:
            self._fail(error)
        self._port.send(None)  # wakes the pump

    def _fail(self, error: BaseException) -> None:
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(error)
