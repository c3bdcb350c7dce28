"""Hostile and broken clients at the endpoint of agents, beside a trajectory that behaves well.

Each client gets an answer that names its mistake, or is cut off. The other trajectory is sampled,
token by token and seed by seed, as it is when nobody else asks.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from agent_loopback import USER, Client, Engine, Here, bridge, environment, ids, user

from forgedsl.environment import Task
from forgedsl.lower import job as spec
from forgedsl_runtime.agents import endpoint as served
from forgedsl_runtime.agents.endpoint import Endpoint
from forgedsl_runtime.agents.play import AgentDriver
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.environments.driver import Limits

TURNS = 8
ROOM = 400
"""tokens of a trajectory"""
CHAT = "/v1/chat/completions"
ASK = json.dumps({"messages": [user(USER)]}).encode()


class Socket:
    """A client that writes bytes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.port = int(client.model.url.rpartition(":")[2].removesuffix("/v1"))

    def head(self, length: int | str, *more: str, method: str = "POST", path: str = CHAT) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Bearer {self.client.model.key}", f"Content-Length: {length}", *more,
        ]  # fmt: skip
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def send(self, *parts: bytes, end: bool = False, read: bool = True) -> bytes:
        """Return the first bytes that come back; b"" if the server closed the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                writer.write(part)
                with suppress(ConnectionError):
                    await writer.drain()
            if end:
                writer.write_eof()
            with suppress(ConnectionError):
                return await reader.read(4096) if read else b""
            return b""
        finally:
            writer.transport.abort()


Act = Callable[[Client, Socket], Awaitable[object]]


def post(body: Any, **headers: str) -> Act:
    async def act(client: Client, socket: Socket) -> object:
        status, _ = await client.post(body, **headers)
        return status

    return act


def raw(make: Callable[[Socket], tuple[bytes, ...]], **how: bool) -> Act:
    async def act(client: Client, socket: Socket) -> object:
        said = await socket.send(*make(socket), **how)
        return int(said.split()[1]) if said.startswith(b"HTTP/") else len(said)

    return act


async def _many_at_once(client: Client, socket: Socket) -> object:
    """80 requests of one trajectory."""
    asked = (client.post({"messages": [user(f"{n}+1")], "max_tokens": 1}) for n in range(80))
    found = await asyncio.gather(*asked)
    return sorted({status for status, _ in found})


async def _same_fifty_times(client: Client, socket: Socket) -> object:
    body = {"messages": [user(USER)], "max_tokens": 1}
    return {status for status, _ in [await client.post(body) for _ in range(50)]}


async def _a_thousand_roots(client: Client, socket: Socket) -> object:
    found = [await client.post({"messages": [user(f"{n}+")]}) for n in range(1000)]
    return sorted({status for status, _ in found})


async def _never_ends(client: Client, socket: Socket) -> object:
    """A loop of tools that has no end: the context has one."""
    said: list[Any] = [user(USER)]
    for _ in range(1000):
        status, body = await client.post({"messages": said})
        if status != 200:
            return status, body["error"]["code"]
        said += [
            body["choices"][0]["message"],
            {"role": "tool", "content": "+", "tool_call_id": "x"},
        ]
    return "no end"


async def _reset_in_a_stream(client: Client, socket: Socket) -> object:
    body = json.dumps({"messages": [user(USER)], "stream": True}).encode()
    for _ in range(20):
        await socket.send(socket.head(len(body)) + body, read=False)
    return "gone"


async def _five_hundred_connections(client: Client, socket: Socket) -> object:
    async def one() -> None:
        await socket.send(b"POST ", read=False)

    await asyncio.gather(*(one() for _ in range(500)))
    return "gone"


async def _slow_header(client: Client, socket: Socket) -> object:
    """A header that does not end; the connection stays open until the endpoint closes."""
    _, writer = await asyncio.open_connection("127.0.0.1", socket.port)
    writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nX-Slow: ")
    client.held = writer  # type: ignore[attr-defined]
    return "waits"


async def _with_the_key_of_another(client: Client, socket: Socket) -> object:
    status, _ = await client.post({"messages": [user(USER)]}, Authorization="Bearer " + "x" * 32)
    return status


def deep(levels: int) -> bytes:
    return b'{"messages": ' + b"[" * levels + b"]" * levels + b"}"


NESTED: Any = {"type": "object"}
for _ in range(400):
    NESTED = {"properties": {"a": NESTED}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": NESTED}}]
CLIENTS: dict[str, tuple[Act, object]] = {
    "a wrong key": (_with_the_key_of_another, 401),
    "no key": (post({"messages": [user(USER)]}, Authorization=""), 401),
    "a key that is no ASCII": (post(ASK, Authorization="Bearer \u00e9"), 401),
    "another host": (post(ASK, Host="evil.example"), 403),
    "no host": (raw(lambda s: (b"POST " + CHAT.encode() + b" HTTP/1.0\r\n\r\n",)), 403),
    "JSON of 100,000 levels": (post(deep(100_000)), 400),
    "a number of 5,000 digits": (post(b'{"messages": [], "seed": ' + b"9" * 5000 + b"}"), 400),
    "NaN": (post(b'{"messages": [], "max_tokens": NaN}'), 400),
    "infinity": (post(b'{"messages": [], "n": Infinity}'), 400),
    "invalid UTF-8": (post(b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'), 400),
    "a lone surrogate": (post({"messages": [user("\ud800")]}), 400),
    "a NUL": (post({"messages": [user("1\x00+1")]}), 200),
    "special tokens": (post({"messages": [user("1<eos><eos>+1")]}), 200),
    "nested tools": (post({"messages": [user(USER)], "tools": TOOLS}), 200),
    "5,000 messages": (post({"messages": [user("1")] * 5000}), 400),
    "a prompt over the context": (post({"messages": [user("1+" * ROOM)]}), 400),
    "16 MiB and more": (post(b" " * (16 * 2**20 + 1)), 413),
    "1 GiB announced": (raw(lambda s: (s.head(2**30), b"{")), 408),
    "a bomb of gzip": (
        post(gzip.compress(b" " * 2**26, 1), Content_Encoding="gzip", Content_Type="text/json"),
        413,
    ),
    "gzip that is none": (post(ASK, Content_Encoding="gzip"), 400),
    "a body that never comes": (raw(lambda s: (s.head(100),)), 408),
    "a body that ends early": (raw(lambda s: (s.head(100), b"{}"), end=True), 0),
    "two lengths": (raw(lambda s: (s.head(2, "Content-Length: 3"), b"{}")), 400),
    "a length that is none": (raw(lambda s: (s.head("two"), b"{}")), 400),
    "chunks that are none": (
        raw(lambda s: (s.head(0, "Transfer-Encoding: chunked"), b"zz\r\n")),
        400,
    ),
    "no HTTP": (raw(lambda s: (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",)), 400),
    "a header of 64 KiB": (raw(lambda s: (s.head(2, "X: " + "x" * 65536), b"{}")), 400),
    "a path that leaves": (
        raw(lambda s: (s.head(0, method="GET", path="/../../etc/passwd"),)),
        404,
    ),
    "another method": (raw(lambda s: (s.head(0, method="DELETE"),)), 405),
    "CONNECT": (raw(lambda s: (s.head(0, method="CONNECT", path="evil.example:80"),)), 403),
    "80 requests at once": (_many_at_once, [200, 429]),
    "the same request 50 times": (_same_fifty_times, {200}),
    "a thousand roots": (_a_thousand_roots, [200, 400]),
    "a loop without end": (_never_ends, (400, "context_length_exceeded")),
    "streams that are reset": (_reset_in_a_stream, "gone"),
    "500 connections": (_five_hundred_connections, "gone"),
    "a slow header": (_slow_header, "waits"),
}


async def _well(client: Client, task: Task) -> dict[str, float]:
    """The trajectory that behaves well."""
    said: list[Any] = [user(USER)]
    for _ in range(TURNS):
        said += [await client.chat(*said), user("+2")]
        await asyncio.sleep(0.01)
    return {"solved": 1.0}


async def _with(names: list[str]) -> tuple[Any, list[int], dict[str, object]]:
    """Play the good trajectory beside some clients: its rollout, its seeds, what they got."""
    endpoint, made, got = Endpoint(), bridge(), dict[str, object]()
    await endpoint.start()

    async def play(run: Any, engine: Engine, group: int) -> Any:
        driver = AgentDriver(
            environment(on_error=0.0), made, lambda: Here(endpoint, run, made, False),
            lambda cause, prompt: None,
        )  # fmt: skip
        prompt = Prompt(
            group=group, row=3, text="1+1=", token_ids=ids("1+1="), target="2",
            messages=[{"role": "user", "content": "1+1"}],
        )  # fmt: skip
        sampling = spec.Sampling(max_tokens=8)
        limits = Limits(
            sampling=sampling, turns=None, max_row_tokens=ROOM, max_total_tokens=2 * ROOM
        )  # fmt: skip
        return await driver.play(engine, prompt, 5, 11, limits)

    def hostile(name: str) -> Any:
        async def run(client: Client, task: Task) -> dict[str, float]:
            act, _ = CLIENTS[name]
            got[name] = await act(client, Socket(client))
            return {"solved": 0.0}

        return run

    engine = Engine()
    bad = [asyncio.create_task(play(hostile(n), Engine(), 9 + i)) for i, n in enumerate(names)]
    good = await play(_well, engine, 7)
    await asyncio.gather(*bad, return_exceptions=True)
    async with asyncio.timeout(60):
        await endpoint.close()
    return good, engine.seeds, got


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "BODY_SECONDS", 5.0)  # 16 MiB come within it


def test_hostile_clients_get_what_they_deserve_and_hurt_no_other_trajectory() -> None:
    alone, seeds, _ = asyncio.run(_with([]))
    beside, same, got = asyncio.run(_with([*CLIENTS]))
    assert got == {name: expected for name, (_, expected) in CLIENTS.items()}
    assert (beside.token_ids, beside.ended, beside.turns) == (alone.token_ids, "done", TURNS)
    assert same == seeds


@pytest.mark.parametrize("name", CLIENTS)
def test_a_hostile_client_gets_what_it_deserves(name: str) -> None:
    good, _, got = asyncio.run(_with([name]))
    assert (got[name], good.turns) == (CLIENTS[name][1], TURNS)
