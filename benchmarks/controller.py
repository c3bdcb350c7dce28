"""What the controller costs: processor time a completion, with thousands of them in flight.

    python benchmarks/controller.py [--in-flight 1000 4000 16000 100000] [--steps 4]

The real controller, its log on disk and its readers, in one process with services that answer at
once: completions leave a pool of all that are in flight in packets, by chance, as replicas send
them. The baseline of each size is an event loop that passes the same messages (a task a completion,
which awaits a completion and a score) and does nothing else. Times are of the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "compiler_tests/runtime")]

GROUP, PACKET, TOKENS = 16, 64, 64


class Wire:
    """Answers that come in packets: `ask` gives a future, every turn of the loop some are done."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._waiting: list[tuple[asyncio.Future[Any], tuple[Any, ...]]] = []
        self._random = random.Random(1)
        self._awake = False
        self.peak = 0

    def ask(self, *what: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((future, what))
        if not self._awake:
            self._awake = True
            loop.call_later(0.0, self._send, 0)
        return future

    def _send(self, before: int) -> None:
        """Wait until no more come, then send."""
        waiting, loop = self._waiting, asyncio.get_running_loop()
        self.peak = max(self.peak, len(waiting))
        if len(waiting) > before:
            loop.call_later(0.0, self._send, len(waiting))
            return
        for _ in range(min(PACKET, len(waiting))):
            place = self._random.randrange(len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            future, what = waiting.pop()
            if not future.done():
                future.set_result(self._answer(*what))
        self._awake = bool(waiting)
        if waiting:
            loop.call_later(0.0, self._send, len(waiting))


def rollout(prompt: Any, sibling: int) -> Any:
    from forgedsl_runtime.data_types import Rollout

    return Rollout(
        group=prompt.group, sibling=sibling, prompt=prompt, token_ids=list(range(TOKENS)),
        logprobs=[-1.0] * TOKENS, mask=[True] * TOKENS, text="x", truncated=False, version_min=0,
        version_max=0, started=time.time(), finished=time.time(),
    )  # fmt: skip


def services(job: Any) -> Any:
    from fake_endpoints import FakeEndpoints

    from forgedsl_runtime.data_types import StepResult
    from forgedsl_runtime.endpoints import Score, SyncResult

    class Instant(FakeEndpoints):
        """Every completion and score goes over the wire; the rest answers at once."""

        def __init__(self) -> None:
            super().__init__(job)
            self.wire = Wire(self.answer)

        def answer(self, prompt: Any, sibling: int) -> Any:
            made = rollout(prompt, sibling)
            made.version_min = made.version_max = self.served["generator"]
            return made

        async def sample(self, node: Any, prompt: Any, sibling: int, seed: int) -> Any:
            return await self.wire.ask(prompt, sibling)

        async def score(self, node: Any, rollout: Any, target: Any) -> Any:
            return Score(value=float(rollout.sibling % 2))

        async def call(self, node: Any, args: dict[str, Any]) -> Any:
            return [0.0] * len(args["r"])

        async def step(self, node: Any, batch: Any) -> Any:
            self.version[node.target] += 1
            return StepResult(
                version=self.version[node.target], loss=0.5, grad_norm=1.0, lr=1e-3, tokens=1,
                metrics={}, kernel="none",
            )  # fmt: skip

        async def sync(self, node: Any, version: int) -> Any:
            self.served[node.to] = version
            return SyncResult(bytes=1, transport="none", seconds=0.0)

    return Instant()


async def controlled(in_flight: int, steps: int, folder: Path) -> tuple[int, int]:
    """(completions, the most that were in flight) of a run."""
    from fake_endpoints import job, math_nodes

    from forgedsl_runtime.controller import Controller
    from forgedsl_runtime.events import EventLog
    from forgedsl_runtime.readers import close_readers, open_readers

    prompts = max(1, in_flight // (2 * GROUP))
    nodes = [
        each.model_copy(update={"slots": 4 * prompts})
        for each in math_nodes(prompts, GROUP, reference=False)
    ]
    the_job = job(nodes, prompts=prompts, credits=2 * prompts, steps=steps)
    the_services = services(the_job)
    with EventLog(folder / "events.jsonl") as events:
        readers = open_readers(the_job, folder)
        for reader in readers:
            events.subscribe(reader.on_event)
        await Controller(the_job, the_services, events).run()
        close_readers(readers)
    return steps * prompts * GROUP, the_services.wire.peak


async def bare(in_flight: int, completions: int) -> None:
    """The same messages without a controller."""
    from forgedsl_runtime.data_types import Prompt

    prompt = Prompt(group=0, row=0, text="", token_ids=[1, 2], target=None)
    wire, room = Wire(rollout), asyncio.Semaphore(in_flight)

    async def score(made: Any) -> float:
        return float(made.sibling % 2)

    async def one(sibling: int) -> None:
        async with room:
            await score(await wire.ask(prompt, sibling))

    await asyncio.gather(*(one(sibling) for sibling in range(completions)))


def measure(in_flight: int, steps: int, *, quiet: bool = False) -> None:
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        completions, peak = asyncio.run(controlled(in_flight, steps, Path(folder)))
        spent = time.process_time() - start
    start = time.process_time()
    asyncio.run(bare(in_flight, completions))
    base = time.process_time() - start
    mine, theirs = 1e6 * spent / completions, 1e6 * base / completions
    if quiet:
        return
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {peak:,} | {completions:,} | {mine:.1f} | {theirs:.1f} | {mine - theirs:.1f} "
        f"| {memory:,.0f} MiB |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in-flight", nargs="*", type=int, default=[1000, 4000, 16000, 100000])
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    measure(64, 2, quiet=True)  # everything is imported
    print("| in flight | completions | us a completion | bare loop | the controller's | memory |")
    print("|---|---|---|---|---|---|")
    for in_flight in given.in_flight:
        measure(in_flight, given.steps)


if __name__ == "__main__":
    main()
