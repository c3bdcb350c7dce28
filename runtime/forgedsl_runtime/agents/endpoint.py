"""The policy behind OpenAI's and Anthropic's protocols: an HTTP server beside the agents.

It listens on the loopback address of the agents' host.

    POST /v1/chat/completions   OpenAI's chat completions
    POST /v1/responses          OpenAI's responses; one answer per request
    POST /v1/messages           Anthropic's messages; one answer per request
    GET  /v1/models

A response is one body, or a stream of events if the request asks for one.

Each trajectory has its own API key. It is valid until the trajectory ends, and gives access to the
rows of this trajectory only. If a client disconnects, its request is cancelled.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web

from forgedsl_runtime.agents import messages, responses
from forgedsl_runtime.agents.protocol import Answer, ApiError, chunks, completion, parsed
from forgedsl_runtime.agents.session import TRAJECTORY_ENDED, Session

HOST = "127.0.0.1"
MESSAGES = "/v1/messages"
ALLOWED_HOSTS = ("127.0.0.1", "localhost")
"""accepted values of the `Host` header. Others are refused: a web page could reach this server
through a host name of its own that resolves to this address (DNS rebinding)"""
MAX_BODY_BYTES = 16 * 2**20
"""largest body in bytes"""
BODY_SECONDS = 30.0
KEEP_ALIVE = 15.0
"""seconds between signs of life in a stream whose answer is still being sampled"""
COLLECT = 10_000
"""new objects after which garbage is collected; Python's own number is 700"""
MAX_ENDED_KEYS = 4096
"""number of keys of ended trajectories that are remembered, to tell them from wrong keys"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """The server of one process; trajectories open and close their sessions."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, None] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port; `url` is its base URL."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_in_its_form])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/responses", self._response)
        app.router.add_post(MESSAGES, self._message)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        listening = socket.create_server((HOST, 0), backlog=1024)
        await web.SockSite(runner, listening).start()
        freeze()
        self._runner = runner
        self.url = f"http://{HOST}:{listening.getsockname()[1]}/v1"

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            self.end(session)
        if self._runner is not None:
            await self._runner.cleanup()

    def begin(self, session: Session) -> None:
        self._sessions[session.key] = session

    def end(self, session: Session) -> None:
        """Revoke the key of a trajectory; its requests in flight are refused."""
        session.close()
        if self._sessions.pop(session.key, None) is not None:
            self._ended[session.key] = None
            if len(self._ended) > MAX_ENDED_KEYS:
                del self._ended[next(iter(self._ended))]

    # ---- requests

    def _session(self, request: web.Request) -> Session:
        _, _, key = request.headers.get("Authorization", "").partition(" ")
        key = request.headers.get("x-api-key", key)
        if key in self._sessions:
            return self._sessions[key]
        if key in self._ended:
            raise ApiError(409, TRAJECTORY_ENDED)
        raise ApiError(401, "wrong API key: each trajectory has its own", code="invalid_api_key")

    async def _models(self, request: web.Request) -> web.StreamResponse:
        name = self._session(request).terms.model
        model = {"id": name, "object": "model", "created": 0, "owned_by": "forgedsl"}
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        raw = await _body(request)
        chat = parsed(_json(raw), session.terms.sampling)
        ident = session.name("chatcmpl")
        answering = session.ask(chat, _digest(raw), is_retry=_is_retry(request))

        def as_events(said: list[Answer]) -> list[str]:
            return [*map(_data, chunks(chat, ident, said)), "data: [DONE]\n\n"]

        if chat.stream:
            return await _streamed(request, answering, as_events)
        return web.json_response(completion(chat, ident, await answering))

    async def _response(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        raw = await _body(request)
        body = _json(raw)
        asked, talk = responses.as_chat(body, session.responses)
        chat = parsed(asked, session.terms.sampling)
        ident = session.name("resp")
        answering = session.ask(chat, _digest(raw), is_retry=_is_retry(request))

        def as_response(said: list[Answer]) -> dict[str, Any]:
            session.responses[ident] = [*talk, said[0].message]
            return responses.response(body, chat, ident, said[0])

        def as_events(said: list[Answer]) -> list[str]:
            found = responses.events(as_response(said))
            return [f"event: {event['type']}\n{_data(event)}" for event in found]

        if chat.stream:
            return await _streamed(request, answering, as_events)
        return web.json_response(as_response(await answering))

    async def _message(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        raw = await _body(request)
        chat = parsed(messages.as_chat(_json(raw)), session.terms.sampling)
        ident = session.name("msg")
        answering = session.ask(chat, _digest(raw), is_retry=_is_retry(request))

        def as_events(said: list[Answer]) -> list[str]:
            found = messages.events(messages.message(chat, ident, said[0]))
            return [f"event: {event['type']}\n{_data(event)}" for event in found]

        if chat.stream:
            return await _streamed(request, answering, as_events)
        return web.json_response(messages.message(chat, ident, (await answering)[0]))


def freeze() -> None:
    """Exempt all present objects from garbage collection. Those of imported packages and of the
    tokenizer live as long as the process, and each full collection would visit all of them: 0.4 s
    for 400,000 objects, in which no request is answered. Collect others seldom: nearly all objects
    of a request are freed when it ends, without a collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT)


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {BODY_SECONDS:g} s") from None
    except web.RequestPayloadError as error:
        raise ApiError(400, f"the body cannot be read: {error}") from None


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw).digest()


def _is_retry(request: web.Request) -> bool:
    """True if the header of OpenAI's client marks the request as a retry."""
    return request.headers.get("x-stainless-retry-count", "0") != "0"


def _form(request: web.Request, error: ApiError) -> dict[str, Any]:
    """Return an error in the form of the protocol of its request."""
    return messages.error(error) if request.path == MESSAGES else error.body


def _event(request: web.Request, error: ApiError) -> str:
    name = "event: error\n" if request.path == MESSAGES else ""
    return name + _data(_form(request, error))


def _data(event: Any) -> str:
    return f"data: {json.dumps(event)}\n\n"


async def _streamed(
    request: web.Request,
    asked: Coroutine[Any, Any, list[Answer]],
    as_events: Callable[[list[Answer]], list[str]],
) -> web.StreamResponse:
    """Send an answer as events. The first event is sent after the whole answer is sampled. Until
    then its tokens are not final: if a replica dies, the request is sampled again. Meanwhile,
    comments keep the connection alive."""
    answering = asyncio.create_task(asked)
    try:
        await asyncio.wait([answering], timeout=KEEP_ALIVE)
        if answering.done():
            answering.result()  # raises an error, which can still get an HTTP status of its own
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        while not answering.done():
            await response.write(b": sampling\n\n")
            await asyncio.wait([answering], timeout=KEEP_ALIVE)
        try:
            sent = as_events(answering.result())
        except ApiError as error:
            sent = [_event(request, error)]
        await response.write("".join(sent).encode())
        await response.write_eof()
    finally:
        answering.cancel()
    return response


@web.middleware
async def _in_its_form(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Write errors in the form of the request's protocol. Refuse a `Host` that is not in
    ALLOWED_HOSTS."""
    try:
        if request.host.rpartition(":")[0] not in ALLOWED_HOSTS:
            raise ApiError(403, f"this endpoint does not serve the host name {request.host}")
        return await handler(request)
    except ApiError as error:
        # the client of OpenAI tries 409 again, which would be in vain
        retry = {"x-should-retry": "false"} if error.status == 409 else {}
        return web.json_response(_form(request, error), status=error.status, headers=retry)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        as_response = ApiError(error.status, f"{request.method} {request.path}: {error.reason}")
        return web.json_response(_form(request, as_response), status=error.status)
