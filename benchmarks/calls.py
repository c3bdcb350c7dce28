"""What a call of an actor leaves behind, in the process that calls and in the one that answers.

    python benchmarks/calls.py [--calls 20000] [--ranks 1] [--together 8]

Calls `heartbeat` of one rank (of all, where there are several) over a mesh as a run has it. KiB for
a call are by least squares over resident memory, looked at 40 times, without the first quarter;
microseconds are of this process' processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

LOOKS, WARM = 40, 10


async def measure(given: argparse.Namespace, folder: Path) -> str:
    from forgedsl_runtime.actors.base import ForgeActor
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    mesh = Mesh.spawn(
        service="actor", origin="", name="actor", size=given.ranks, actor=ForgeActor, args=(),
        kwargs={}, start=bootstrap({}, folder / "actor", "cpu"), logs=folder / "actor",
    )  # fmt: skip
    mesh.members = await mesh.call("describe")
    seen = [psutil.Process(), *(psutil.Process(member["pid"]) for member in mesh.members)]
    sizes: list[list[float]] = [[] for _ in seen]
    each = given.calls // LOOKS // given.together
    began = time.process_time()

    async def ask() -> None:
        for _ in range(each):
            await (mesh.one(0, "heartbeat") if given.ranks == 1 else mesh.call("heartbeat"))

    for _ in range(LOOKS):
        await asyncio.gather(*(ask() for _ in range(given.together)))
        for size, process in zip(sizes, seen, strict=True):
            size.append(process.memory_info().rss / 1024)
    used = (time.process_time() - began) / (each * LOOKS * given.together)
    await mesh.stop()
    calls: list[Any] = [n * each * given.together for n in range(WARM, LOOKS)]
    slopes = [statistics.linear_regression(calls, size[WARM:]).slope for size in sizes]
    told = ", ".join(f"{slope:.2f}" for slope in slopes)
    return f"{given.calls:,} calls, KiB a call: {told}; {1e6 * used:.0f} us of the caller each"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--calls", type=int, default=20_000)
    asked.add_argument("--ranks", type=int, default=1)
    asked.add_argument("--together", type=int, default=8, help="calls in flight")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(measure(given, Path(folder))))


if __name__ == "__main__":
    main()
