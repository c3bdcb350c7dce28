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

    python benchmarks/endpoint.py --requests 100000 --engine 0.1 --rounds 1      if memory grows
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

ROOT = Path(__file__).parents[1]
TURNS = 8
TEXT = 2048
"""characters of new text in a request"""
ANSWER = "42"


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
        f"{row['most']:.1f}; server {row['processor']:.2f} ms of processor a request, "
        f"memory {memory}",
        flush=True,
    )


def seconds(engine: float, key: str, turn: int) -> float:
    """Return the time of an answer, the same for server and client."""
    return engine * random.Random(f"{key} {turn}").uniform(0.5, 1.5)


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
    from forgedsl.runtime.agents.endpoint import Endpoint
    from forgedsl.runtime.agents.session import Session, Terms
    from forgedsl.runtime.agents.tree import Tree

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

    async def answer(session: Session, number: int) -> None:
        await asyncio.sleep(seconds(given.engine, session.key, number))
        session.answered(number, [10, 11, EOS], ANSWER, "stop")

    async def follow(session: Session) -> None:
        tasks = []
        for _ in range(TURNS):
            for kind, ask in await session.events():
                assert kind == "ask", kind
                tasks.append(asyncio.create_task(answer(session, ask[0])))
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.5)  # the client has its answer
        endpoint.end(session)

    keys = [session.key for session in sessions]
    following = [asyncio.create_task(follow(session)) for session in sessions]
    sessions.clear()
    row = await measured(given, endpoint.url, keys)
    await asyncio.gather(*following)
    await endpoint.close()
    return row


# ---- the clients' process


async def ask_all(asked: dict[str, Any]) -> None:
    """Ask with so many sessions at a time; print the overheads of all requests."""
    keys = iter(json.loads(sys.stdin.read()))
    overheads: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    began = time.monotonic()
    async with aiohttp.ClientSession(connector=connector) as http:
        alphabet = "0123456789+-= "

        async def session(key: str, wait: float, long: int) -> None:
            await asyncio.sleep(wait)
            random_of = random.Random(key)
            messages: list[dict[str, str]] = []
            for turn in range(TURNS):
                is_long = long > 0 and turn == 0
                text = "".join(random_of.choices(alphabet, k=long if is_long else TEXT))
                messages.append({"role": "user", "content": text})
                body = json.dumps({"model": "m", "messages": messages})
                headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
                start = time.monotonic()
                url = asked["url"] + "/chat/completions"
                async with http.post(url, data=body, headers=headers) as response:
                    found = json.loads(await response.read())
                    assert response.status == 200, found
                taken = time.monotonic() - start
                if not is_long:
                    overheads.append(taken - seconds(asked["engine"], key, turn))
                message = found["choices"][0]["message"]
                messages.append({"role": "assistant", "content": message["content"]})

        async def worker(number: int) -> None:
            wait = asked["engine"] * number / asked["sessions"]
            for key in keys:
                await session(key, wait, asked["long"] if number % 16 == 0 else 0)
                wait = 0.0

        await asyncio.gather(*(worker(number) for number in range(asked["sessions"])))
    points = statistics.quantiles(overheads, n=100)
    row = {
        "requests": len(overheads), "rate": len(overheads) / (time.monotonic() - began),
        "p50": 1000 * points[49], "p95": 1000 * points[94], "p99": 1000 * points[98],
        "most": 1000 * max(overheads),
    }  # fmt: skip
    print(json.dumps(row))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
