"""Requests of one trajectory, from its agent's clients to the controller that samples.

    client --ask(Chat)--> place in the tree --Ask--> events() --> controller --> engine
                                       client <--answered(number, ...)--'

The controller gets events in order: `ask`, `cancel` (the client has gone: forget the request, also
if it was sampled meanwhile), `full` (a prompt was too long to be tokenized), `end` (the agent
returned, or failed).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2 import TemplateError

from forgedsl.lower.job import Sampling
from forgedsl_runtime.agents.protocol import (
    Answer,
    ApiError,
    Chat,
    message_of,
    normalized,
    too_long,
)
from forgedsl_runtime.agents.tree import Place, Tree
from forgedsl_runtime.tracebacks import described

MAX_IN_FLIGHT = 64
"""largest number of answers of a trajectory that are sampled at a time"""
MAX_REPLAYED = 64
"""finished requests that are kept for clients who ask again"""
TRAJECTORY_ENDED = "the trajectory of this key is over"


class Ask(NamedTuple):
    """A request to sample a continuation. `tokens` are appended to `row`, or begin it if the row is
    `new`."""

    number: int
    row: int
    new: bool
    tokens: list[int]
    text: str
    depth: int
    repeat_index: int
    seed: int | None
    max_tokens: int | None
    stop: tuple[str, ...]


Event = tuple[str, Any]
"""("ask", an Ask as plain tuple), ("cancel", number), ("full", None), ("end", a Reply)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Settings for the requests of a trajectory: name and sampling parameters of the policy, and
    the most tokens of a row. `rewrites`: the chat template renders earlier turns again
    (`history = template`)."""

    model: str
    sampling: Sampling
    max_row_tokens: int
    rewrites: bool


class Session:
    """The endpoint's side of one trajectory. `on_ignored(field, reason)` is called for each request
    field that is ignored."""

    def __init__(self, terms: Terms, tree: Tree, on_ignored: Callable[[str, str], None]) -> None:
        self.key = secrets.token_urlsafe(24)
        self.terms = terms
        self._tree, self._on_ignored = tree, on_ignored
        self._numbers = itertools.count()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[tuple[list[int], str, str]]] = {}
        self._replayed: dict[bytes, list[Answer]] = {}
        self._in_flight = 0
        self._over = False
        self._names = itertools.count()
        self.responses: dict[str, list[dict[str, Any]]] = {}
        """by id of a response: the messages up to it"""

    # ---- for the controller

    async def events(self) -> list[Event]:
        """Return what happened since the last call; wait until something has."""
        found = [await self._events.get()]
        while not self._events.empty():
            found.append(self._events.get_nowait())
        return found

    def answered(self, number: int, tokens: list[int], text: str, finish: str) -> None:
        """Deliver an answer to the client that waits for it."""
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result((tokens, text, finish))

    def refused(self, number: int, message: str, code: str) -> None:
        """Refuse a request that has no room in the context, or in the turns of a trajectory."""
        future = self._waiting.get(number)
        error = too_long(message)
        error.code = code
        if future is not None and not future.done():
            future.set_exception(error)

    def ended(self, reply: Any) -> None:
        """Tell the controller that the agent ended. This is the last event."""
        self._events.put_nowait(("end", reply))

    def close(self) -> None:
        """Refuse requests from now on, those in flight too."""
        self._over = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ApiError(409, TRAJECTORY_ENDED))

    # ---- for clients

    def name(self, kind: str) -> str:
        """Return an id for an answer, unique in the trajectory: "resp_3"."""
        return f"{kind}_{next(self._names)}"

    async def ask(self, chat: Chat, digest: bytes, *, is_retry: bool) -> list[Answer]:
        """Answer a request. `is_retry`: the client retries it; if it was answered before, it gets
        the same answer.

        Raises:
            ApiError: it cannot be answered.
        """
        if self._over:
            raise ApiError(409, TRAJECTORY_ENDED)
        if is_retry and digest in self._replayed:
            return self._replayed[digest]
        if self._in_flight + chat.n > MAX_IN_FLIGHT:
            raise ApiError(
                429, f"more than {MAX_IN_FLIGHT} answers of this trajectory are in flight"
            )
        for name, why in chat.ignored_fields.items():
            self._on_ignored(name, why)
        self._measure(chat)
        said = [await self._one(chat, 0)] if chat.n == 1 else await self._several(chat)
        self._replayed[digest] = said
        if len(self._replayed) > MAX_REPLAYED:
            del self._replayed[next(iter(self._replayed))]
        return said

    async def _several(self, chat: Chat) -> list[Answer]:
        """Return `n` answers to one request."""
        tasks = [asyncio.create_task(self._one(chat, index)) for index in range(chat.n)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def _measure(self, chat: Chat) -> None:
        """Refuse a request that is certainly too long, without tokenizing it: it has more
        characters than `max_row_tokens` of the longest tokens."""
        size = sum(len(message["content"]) for message in chat.messages)
        most = self.terms.max_row_tokens * self._tree.bridge.longest_token
        if size > most:
            self._events.put_nowait(("full", None))
            raise too_long(
                f"the messages have {size} characters; the context holds "
                f"{self.terms.max_row_tokens} tokens, at most {most} characters"
            )

    async def _one(self, chat: Chat, index: int) -> Answer:
        self._in_flight += 1
        try:
            return await self._sampled(chat, index)
        finally:
            self._in_flight -= 1

    async def _sampled(self, chat: Chat, index: int) -> Answer:
        place = await self._placed(chat)
        if self._over:  # it ended while the text was tokenized; no event may follow "end"
            self._tree.leave(place)
            raise ApiError(409, TRAJECTORY_ENDED)
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        ask = Ask(
            number=number, row=place.row, new=place.new, tokens=place.tokens, text=place.text,
            depth=place.depth, repeat_index=place.repeat_index if chat.seed is None else index,
            seed=chat.seed, max_tokens=chat.max_tokens, stop=chat.stop,
        )  # fmt: skip
        self._events.put_nowait(("ask", tuple(ask)))
        try:
            tokens, text, finish = await future
        except BaseException as error:
            self._tree.leave(place)
            if not isinstance(error, ApiError) and not self._over:
                self._events.put_nowait(("cancel", number))
            raise
        finally:
            del self._waiting[number]
        read = self._tree.bridge.read_calls
        try:
            before, found = read(text, chat.tools) if chat.calls else (text, ())
        except Exception as error:  # a parser of vLLM may fail in any way
            self._tree.leave(place)
            raise ApiError(500, f"its tool calls cannot be read: {described(error)}") from error
        message, calls = message_of(text, before, found, str(number))
        self._tree.end(place, normalized(message), tokens, text)
        return Answer(
            message=message, finish="tool_calls" if calls and finish == "stop" else finish,
            prompt_tokens=place.before + len(place.tokens), tokens=len(tokens),
        )  # fmt: skip

    async def _placed(self, chat: Chat) -> Place:
        try:
            return await self._tree.begin(chat.messages, chat.tools)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            message = f"the chat template does not take these messages: {error}"
            raise ApiError(400, message, param="messages") from error
