"""What the endpoint of agents adds to a request, and if its memory stays flat.

    python benchmarks/endpoint.py [--sessions 256] [--engine 1.0] [--requests 10000] [--rounds 1]
                                  [--long CHARACTERS] [--json FILE]

    clients (a process) --HTTP--> Endpoint, Session, Tree (a process) --event--> engine: sleeps

Every session is an agent that sends a chat of growing length: each request has 2 KiB of new text,
and after TURNS requests another session begins. The engine answers each request some time after the
endpoint asked it: between half and one and a half of `--engine` seconds, drawn for each request.
That is what calling it directly takes. With equal times, sessions that were once delayed together
would come together for ever. Overhead is the rest of what the client measures: both event loops,
HTTP, JSON, tokenizing and matching the history. `floor` is the same client asking an aiohttp
handler that only sleeps. With `--long`, one worker in 16 begins each session with a text of so many
characters, and the figures are those of all other requests. `--rounds` measures both so often, one
after the other. Memory is what is resident of the endpoint's process, after a tenth of the requests
and at the end.

All clients are one process with one event loop, which must not be what is measured. So they make
their texts before the first request, speak HTTP with few lines of code, and tell how late their
loop was: `clients late` is by how much timers of 5 ms went off too late. Where this is not far
below the overhead, the machine is too busy, and the overhead says nothing about the endpoint.

    python benchmarks/endpoint.py --requests 100000 --engine 0.1 --rounds 1      if memory grows
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from aiohttp import web

ROOT = Path(__file__).parents[1]
TURNS = 8
TEXT = 2048
"""characters of new text in a request"""
ANSWER = "42"
MAX_TEXTS = 20_000
"""different texts; they are used again if there are more requests"""
TICK = 0.005
"""seconds between two looks at the clock of the clients"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--engine", type=float, default=1.0, help="seconds of an answer")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--long", type=int, default=0, help="characters of long texts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.clients:
        asyncio.run(ask_all(json.loads(given.clients)))
        return
    rows: dict[str, dict[str, float]] = {}
    for number in range(given.rounds):
        for name, measure in (("floor", floor), ("endpoint", served)):
            rows[f"{name} {number + 1}"] = row = asyncio.run(measure(given))
            tell(name, row)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def tell(name: str, row: dict[str, float]) -> None:
    """Print what was measured."""
    memory = f"{row['before']:.0f} -> {row['after']:.0f} MiB"
    print(
        f"{name:<9} {row['requests']:,} requests, {row['rate']:.0f} a second; overhead p50 "
        f"{row['p50']:.2f} ms, p95 {row['p95']:.2f}, p99 {row['p99']:.2f}, most "
        f"{row['most']:.1f}; clients late p50 {row['late50']:.2f} ms, p99 {row['late99']:.2f}; "
        f"processor a request {row['processor']:.2f} ms (clients {row['clients']:.2f}), "
        f"memory {memory}",
        flush=True,
    )


def seconds(engine: float, key: str, turn: int) -> float:
    """Return the time of an answer, the same for server and client."""
    return engine * (0.5 + zlib.crc32(f"{key} {turn}".encode()) / 2**32)


# ---- the server's process


async def measured(given: argparse.Namespace, url: str, keys: list[str]) -> dict[str, float]:
    """Let another process ask; return its figures and those of this process."""
    me = psutil.Process()
    asked = {
        "url": url, "sessions": given.sessions, "engine": given.engine, "long": given.long
    }  # fmt: skip
    client = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--clients", json.dumps(asked),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert client.stdin is not None
    before = me.cpu_times()
    memory: list[float] = []

    async def watch() -> None:
        while True:
            memory.append(me.memory_info().rss / 2**20)
            await asyncio.sleep(1.0)

    watching = asyncio.create_task(watch())
    output, _ = await client.communicate(json.dumps(keys).encode())
    watching.cancel()
    after = me.cpu_times()
    row: dict[str, float] = json.loads(output)
    used = after.user + after.system - before.user - before.system
    tenth = memory[max(1, len(memory) // 10)]
    return row | {"processor": 1000 * used / row["requests"], "before": tenth, "after": memory[-1]}


async def floor(given: argparse.Namespace) -> dict[str, float]:
    """Serve a handler that reads the body, sleeps and answers."""

    async def handle(request: web.Request) -> web.Response:
        turn = len((await request.json())["messages"]) // 2
        key = request.headers["Authorization"].removeprefix("Bearer ")
        await asyncio.sleep(seconds(given.engine, key, turn))
        message = {"role": "assistant", "content": ANSWER}
        return web.json_response({"choices": [{"index": 0, "message": message}]})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    keys = [str(number) for number in range(-(-given.requests // TURNS))]
    row = await measured(given, url, keys)
    await runner.cleanup()
    return row


EOS = 2
MADE = "import pickle, sys, agent_loopback as a; sys.stdout.buffer.write(pickle.dumps(a.bridge()))"


async def bridge() -> Any:
    """Return a tokenizer as the process of agents gets it: pickled by another process, which has
    loaded what it takes to read its files."""
    folder = str(ROOT / "compiler_tests/runtime")
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MADE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": folder}
    )
    output, _ = await made.communicate()
    return pickle.loads(output)


async def served(given: argparse.Namespace) -> dict[str, float]:
    """Serve the endpoint; sessions begin and end with the answers they get."""
    from forgedsl.lower import job as spec
    from forgedsl_runtime.agents.endpoint import Endpoint
    from forgedsl_runtime.agents.session import Session, Terms
    from forgedsl_runtime.agents.tree import Tree

    endpoint, tokenizer = Endpoint(), await bridge()
    await endpoint.start()
    terms = Terms(
        model="m", sampling=spec.Sampling(max_tokens=8), max_row_tokens=1 << 20, rewrites=False
    )
    sessions = []
    for _ in range(-(-given.requests // TURNS)):
        session = Session(terms, Tree(tokenizer, rewrites=False), lambda *_: None)
        endpoint.begin(session)
        sessions.append(session)

    async def follow(session: Session) -> None:
        loop, asked = asyncio.get_running_loop(), 0
        while asked < TURNS:
            for kind, ask in await session.events():
                assert kind == "ask", kind
                asked += 1
                wait = seconds(given.engine, session.key, ask[0])
                loop.call_later(wait, session.answered, ask[0], [10, 11, EOS], ANSWER, "stop")
        await asyncio.sleep(1.5 * given.engine + 0.5)  # the client has its answer
        endpoint.end(session)

    keys = [session.key for session in sessions]
    following = [asyncio.create_task(follow(session)) for session in sessions]
    sessions.clear()
    row = await measured(given, endpoint.url, keys)
    await asyncio.gather(*following)
    await endpoint.close()
    return row


# ---- the clients' process


class Connection(asyncio.Protocol):
    """A connection with one request at a time, kept alive."""

    def __init__(self) -> None:
        self._got = b""
        self._answer: asyncio.Future[tuple[bytes, float]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        if len(body) < length:
            return
        assert head.startswith(b"HTTP/1.1 200 "), self._got
        assert self._answer is not None
        self._answer.set_result((body, time.monotonic()))
        self._got = b""

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("closed"))

    async def ask(self, head: bytes, body: bytes) -> tuple[bytes, float]:
        """Return the body of the answer, and the seconds until it came."""
        self._answer = asyncio.get_running_loop().create_future()
        start = time.monotonic()
        self.transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        answer, end = await self._answer
        return answer, end - start


def said(role: str, text: str) -> bytes:
    return json.dumps({"role": role, "content": text}).encode()


async def ask_all(asked: dict[str, Any]) -> None:
    """Ask with so many sessions at a time; print the overheads of all requests."""
    keys: list[str] = json.loads(sys.stdin.read())
    random_of, alphabet = random.Random(1), "0123456789+-= "
    texts = [
        said("user", "".join(random_of.choices(alphabet, k=TEXT)))
        for _ in range(min(TURNS * len(keys), MAX_TEXTS))
    ]
    long = said("user", "".join(random_of.choices(alphabet, k=asked["long"])))
    url, new, left = urlsplit(asked["url"]), iter(itertools.cycle(texts)), iter(keys)
    overheads: list[float] = []
    late: list[float] = []

    async def session(connection: Connection, key: str, *, begins_long: bool) -> None:
        messages: list[bytes] = []
        head = (
            f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        ).encode()
        for turn in range(TURNS):
            is_long = begins_long and turn == 0
            messages.append(long if is_long else next(new))
            body = b'{"model": "m", "messages": [%s]}' % b", ".join(messages)
            answer, taken = await connection.ask(head, body)
            if not is_long:
                overheads.append(taken - seconds(asked["engine"], key, turn))
            message = json.loads(answer)["choices"][0]["message"]
            messages.append(said("assistant", message["content"]))

    async def worker(number: int) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, url.hostname, url.port)
        await asyncio.sleep(asked["engine"] * number / asked["sessions"])
        for key in left:
            await session(connection, key, begins_long=asked["long"] > 0 and number % 16 == 0)
        connection.transport.close()

    async def watch() -> None:
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            late.append(time.monotonic() - due)

    began, before = time.monotonic(), time.process_time()
    watching = asyncio.create_task(watch())
    await asyncio.gather(*(worker(number) for number in range(asked["sessions"])))
    watching.cancel()
    points, loop_points = (statistics.quantiles(each, n=100) for each in (overheads, late))
    row = {
        "requests": len(overheads), "rate": len(overheads) / (time.monotonic() - began),
        "p50": 1000 * points[49], "p95": 1000 * points[94], "p99": 1000 * points[98],
        "most": 1000 * max(overheads), "late50": 1000 * loop_points[49],
        "late99": 1000 * loop_points[98],
        "clients": 1000 * (time.process_time() - before) / len(overheads),
    }  # fmt: skip
    print(json.dumps(row))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in a run
    main()
