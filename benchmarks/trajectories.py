"""What environments cost: the engine's idle share, and processor time a trajectory.

    python benchmarks/trajectories.py [--in-flight 64 256] [--seconds 30] [--json FILE]

The real driver, client and pool of processes play in an environment whose tool sleeps 0 to 2 s,
once as `async def` and once in a plain method; only the engine is a rehearsal's: so many slots, a
token of each in so many seconds. As soon as a trajectory ends another begins. `idle` is what the
engine does less than with tools that answer at once. Milliseconds are of the processor, for a
trajectory; `bare` is an event loop that awaits the same engine and sleeps as long. `delay` is from
the end of a turn until the policy could go on, without the tool's own time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "compiler_tests/runtime")]
DESK = '''
import asyncio
import random
import time

from forgedsl.environment import Environment, tool


class Desk(Environment):
    def __init__(self, *, most: float) -> None:
        self.most = most

    @tool
    async def together(self, key: str) -> str:
        """The price of a thing."""
        began = time.monotonic()
        await asyncio.sleep(random.uniform(0.0, self.most))
        return str(time.monotonic() - began)

    @tool
    def blocking(self, key: str) -> str:
        """The price of a thing."""
        began = time.monotonic()
        time.sleep(random.uniform(0.0, self.most))
        return str(time.monotonic() - began)
'''
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>{"name": "%s", "arguments": {"key": "nail"}}</tool_call>'
WARM = 4.0
"""seconds before anything is measured"""
MOST = 2.0
"""seconds that a tool takes at most"""


class Engine:
    """A rehearsal's engine in this process. Every turn calls a tool."""

    def __init__(self, given: argparse.Namespace, tool: str, step: float) -> None:
        from forgedsl.sim.latency import Engine as Spec
        from forgedsl.sim.values import Dist
        from forgedsl_runtime.actors.stub_engine import StubEngine

        length = Dist(points=(given.tokens,))
        spec = Spec(
            tokens=length, prompt=length, decode=step, decode_sequence=0.0, prefill=0.0,
            max_running=given.slots, load=0.0, start=0.0,
        )  # fmt: skip
        self._engine = StubEngine(spec, self._done)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._text, self._tokens = CALL % tool, given.tokens
        self._count = 0

    @property
    def tokens(self) -> float:
        batching = self._engine.batching
        batching.advance(asyncio.get_running_loop().time())
        return batching.tokens

    async def sample(self, token_ids: list[int], sampling: Any, seed: int) -> Any:
        from forgedsl_runtime.actors.stub_engine import StubRequest

        self._count += 1
        ident, tokens = str(self._count), round(random.uniform(0.5, 1.5) * self._tokens)
        self._waiting[ident] = asyncio.get_running_loop().create_future()
        request = StubRequest(id=ident, prompt=len(token_ids), tokens=tokens, truncated=False)
        self._engine.submit([request])
        return await self._waiting[ident]

    def _done(self, completions: list[Any]) -> None:
        for completion in completions:
            completion.text = self._text
            completion.versions = ((0, len(completion.token_ids)),)
            future = self._waiting.pop(completion.id)
            if not future.done():  # its trajectory was cut at the end of the time
                future.set_result(completion)


class Timed:
    """A session, and how much longer than its tool a step took."""

    def __init__(self, session: Any, delays: list[float]) -> None:
        self._session, self._delays = session, delays
        self.reset, self.close = session.reset, session.close

    async def step(self, turn: Any) -> Any:
        from forgedsl_runtime.environments.driver import TokenizedStep

        began = time.monotonic()
        step = await self._session.step(turn)
        spent = time.monotonic() - began
        said = (
            step.tokenized.text
            if isinstance(step, TokenizedStep)
            else step.observation[0]["content"]
        )
        self._delays.append(spent - float(said.split("tool\n")[-1].split("<")[0]))
        return step


def environment(folder: Path, most: float, procs: int) -> Any:
    """The environment, as the job has it."""
    from forgedsl.lower import job as spec

    (folder / "desk.py").write_text(DESK)
    return spec.Environment(
        type_name="Desk", args={"most": most}, path="desk.py",
        sha256=sha256(DESK.encode()).hexdigest(), procs=procs,
        tools=("blocking", "together"),
    )  # fmt: skip


async def pool(folder: Path, most: float, procs: int) -> tuple[Any, Any]:
    """The processes of the environment, and the client of all of them."""
    from fake_endpoints import job

    from forgedsl_runtime.actors.environment import EnvironmentPool
    from forgedsl_runtime.events import EventLog
    from forgedsl_runtime.meshes import set_up
    from forgedsl_runtime.services.environment import EnvironmentClient
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    played = environment(folder, most, procs)
    name = f"environment_{most:g}".replace(".", "_")
    mesh = Mesh.spawn(
        service="desk", origin="", name=name, size=procs, actor=EnvironmentPool,
        args=(job(environments={"desk": played}), "desk", str(folder)), kwargs={},
        start=bootstrap({"FORGEDSL_ACTOR": "1"}, folder / name, "cpu"), logs=folder / name,
    )  # fmt: skip
    await set_up(mesh, (), lambda *facts: None)
    return mesh, EnvironmentClient("desk", played, mesh, EventLog())


async def lanes(
    count: int, seconds: float, play: Callable[[], Awaitable[Any]], now: Callable[[], list[float]]
) -> list[float]:
    """Keep so many trajectories in flight; how much each of `now` grows in a second, from when the
    first of them have ended."""

    async def lane() -> None:
        while True:
            await play()

    tasks = [asyncio.create_task(lane()) for _ in range(count)]

    async def wait(seconds: float) -> None:
        done, _ = await asyncio.wait(
            tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )  # fmt: skip
        for task in done:
            task.result()

    await wait(WARM)
    began, before = time.monotonic(), now()
    await wait(seconds)
    after, spent = now(), time.monotonic() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return [(b - a) / spent for a, b in zip(before, after, strict=True)]


def used(mesh: Any) -> float:
    """Seconds of the processor that the processes of a mesh have had."""
    found = [psutil.Process(member["pid"]) for member in mesh.members]
    found += [child for process in found for child in process.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in found)


async def played(
    given: argparse.Namespace, in_flight: int, tool: str, step: float, mesh: Any, client: Any
) -> dict[str, float]:
    """Trajectories of the real driver, for so many seconds."""
    from forgedsl.lower import job as spec
    from forgedsl_runtime.data.chat import ChatTokenizer
    from forgedsl_runtime.data_types import Prompt
    from forgedsl_runtime.environments.driver import Limits

    tokenizer = ChatTokenizer.load(str(ROOT / "pipelines/tokenizers/arithmetic"), QWEN)
    driver, engine, delays = await client.driver(tokenizer), Engine(given, tool, step), []
    begin = driver._begin
    driver._begin = lambda: Timed(begin(), delays)
    limits = Limits(
        sampling=spec.Sampling(max_tokens=999), turns=given.turns, max_row_tokens=1 << 20
    )
    tokens = tokenizer.prompt_tokens([{"role": "user", "content": "12+30="}])

    def drawn() -> Iterator[tuple[Prompt, int]]:
        for group in itertools.count():
            text = f"12+{group}="
            prompt = Prompt(
                group=group, row=group, text=text, token_ids=tokens, target=None,
                messages=[{"role": "user", "content": text}],
            )  # fmt: skip
            yield from ((prompt, sibling) for sibling in range(given.group))

    prompts = drawn()

    async def play() -> None:
        prompt, sibling = next(prompts)
        seed = prompt.group * given.group + sibling
        rollout = await driver.play(engine.sample, prompt, sibling, seed, limits)
        assert (rollout.ended, rollout.turns) == ("turns", given.turns)

    def now() -> list[float]:
        return [len(delays) / given.turns, engine.tokens, time.process_time(), used(mesh)]

    count, rate, cpu, there = await lanes(in_flight, given.seconds, play, now)
    return {
        "rate": rate,
        "trajectories_s": count,
        "ms": 1e3 * cpu / count,
        "pool_ms": 1e3 * there / count,
        "delay_ms": 1e3 * statistics.median(delays),
        "delay_99_ms": 1e3 * statistics.quantiles(delays, n=100)[-1],
    }


async def bare(given: argparse.Namespace, in_flight: int, most: float, step: float) -> float:
    """Milliseconds of the processor for a trajectory, without a driver or an environment."""
    engine, turns = Engine(given, "together", step), 0

    async def play() -> None:
        nonlocal turns
        for _ in range(given.turns):
            await engine.sample([], None, 0)
            await asyncio.sleep(random.uniform(0.0, most))
            turns += 1

    def now() -> list[float]:
        return [turns / given.turns, time.process_time()]

    count, cpu = await lanes(in_flight, given.seconds, play, now)
    return 1e3 * cpu / count


async def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All rows of the table."""
    from forgedsl_runtime.controller.core import COLLECT

    pools = {most: await pool(folder, most, given.procs) for most in (0.0, MOST)}
    found = []
    print("| in flight | tools | tokens/s | idle | a s | ms | bare | ours | pool | delay | 99 % |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    gc.freeze()  # as in a run
    gc.set_threshold(*COLLECT)
    for in_flight in given.in_flight:
        rate = None
        for name, tool, most, step in (
            ("at once", "together", 0.0, given.step),
            ("async", "together", MOST, given.step),
            ("blocking", "blocking", MOST, given.step),
            ("engine and tools at once", "together", 0.0, 0.0),
        ):
            row: dict[str, Any] = await played(given, in_flight, tool, step, *pools[most])
            row |= {"in_flight": in_flight, "bare_ms": await bare(given, in_flight, most, step)}
            row |= {"tools": name, "ours_ms": row["ms"] - row["bare_ms"]}
            rate = rate or row["rate"]
            row["idle"] = 1.0 - row["rate"] / rate if step else None
            found.append(row)
            engine = f"{row['rate']:,.0f} | {100 * row['idle']:.1f} %" if step else "|"
            print(
                f"| {in_flight} | {row['tools']} | {engine} | {row['trajectories_s']:.0f} "
                f"| {row['ms']:.2f} | {row['bare_ms']:.2f} | {row['ours_ms']:.2f} "
                f"| {row['pool_ms']:.2f} | {row['delay_ms']:.1f} | {row['delay_99_ms']:.1f} |",
                flush=True,
            )
    for mesh, _ in pools.values():
        await mesh.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in-flight", nargs="*", type=int, default=[64, 256])
    parser.add_argument("--group", type=int, default=8, help="siblings of a prompt")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="of a turn, on average")
    parser.add_argument("--slots", type=int, default=128, help="sequences that run at a time")
    parser.add_argument("--step", type=float, default=0.02, help="seconds of a token of each")
    parser.add_argument("--procs", type=int, default=1, help="of the environment")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row")
    parser.add_argument("--json", type=Path, help="write the rows there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(given, Path(folder)))
    if given.json:
        given.json.write_text(json.dumps({"settings": vars(given), "rows": found}, default=str))


if __name__ == "__main__":
    main()
