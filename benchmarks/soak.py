"""A long run, and what grows in it: memory and open files of each process, queues, event lag.

    forgec run (three hosts that are processes) --every EVERY s--> own memory, files, counts
        --least squares, without the first WARM of the time--> a slope with its error, by process,
          and the largest step, of which a slope may consist

    python benchmarks/soak.py [--minutes 30] [--run-dir runs/soak] [words for --set]

The queue holds the groups that are ready and not yet trained, the lag is the age of the newest
event in the file when it is looked at. Memory is what a process
has to itself (USS): its part of what it shares (PSS) moves with what else runs on the machine. The
run ends by SIGTERM, and has to end with 75.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
WORDS = ("launcher=process", "cluster.hosts=3", "generator.replicas=2", "prompts=4", "group=4",
         "schedule.steps=1000000", "held_out.limit=16", "checkpoint.every=200")  # fmt: skip
EVERY, WARM = 10.0, 0.25
MINUTE = 6
"""looks"""
MIB = 2**20


@dataclass
class Series:
    """What was measured of one thing: seconds since the start, and values."""

    unit: str
    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def slope(self, begin: float = WARM) -> tuple[float, float]:
        """Per hour, and its standard error, without so much of the time at the start."""
        first = next(i for i, t in enumerate(self.at) if t >= begin * self.at[-1])
        x, y = [t / 3600 for t in self.at[first:]], self.values[first:]
        if len(x) < 3:
            return 0.0, float("inf")
        slope, at_zero = statistics.linear_regression(x, y)
        mean = statistics.fmean(x)
        rest = sum((b - at_zero - slope * a) ** 2 for a, b in zip(x, y, strict=True))
        return slope, (rest / (len(x) - 2) / sum((a - mean) ** 2 for a in x)) ** 0.5

    def step(self) -> tuple[float, float]:
        """The largest rise from one minute to the next, of medians, and the second when it was:
        a slope, and its error, do not tell a single step from growth."""
        y, size = self.values, max(1, min(MINUTE, len(self.values) // 4))
        ends = range(max(size, int(WARM * len(y))), len(y) - size + 1)
        middle = [statistics.median(y[i : i + size]) for i in range(len(y))]
        return max(((middle[i] - middle[i - size], self.at[i]) for i in ends), default=(0.0, 0.0))


class Tail:
    """What has come to a file of events so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.read = path, 0
        self.ready = self.steps = 0
        self.newest = 0.0

    def look(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self.read += len(new)
        for line in new.splitlines():
            event = json.loads(line)
            self.newest = event["time"]
            self.ready += "ready" in event
            if event["kind"] == "step.end":
                self.ready, self.steps = self.ready - len(event["groups"]), self.steps + 1


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--minutes", type=float, default=30)
    asked.add_argument("--run-dir", type=Path, default=Path("runs/soak"))
    asked.add_argument("words", nargs="*")
    given = asked.parse_args()
    program = [str(ROOT / "pipelines/grpo_math.forge"), "--profile", "cpu"]
    command = [sys.executable, "-m", "forgedsl.cli.main", "run", *program]
    command += ["--run-dir", str(given.run_dir), "--set", *WORDS, *given.words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        try:
            found = watch(run, given.run_dir, 60 * given.minutes)
        finally:
            run.send_signal(signal.SIGTERM)
        code = run.wait(600)
    print(table(found, given.minutes, code))
    return 0 if code == 75 else 1


def watch(run: subprocess.Popen[bytes], folder: Path, seconds: float) -> dict[str, Series]:
    """Look every so often, from the first step on."""
    found: dict[str, Series] = {}
    metrics = folder / "metrics.jsonl"
    while run.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(1)
    start, tail = time.monotonic(), Tail(folder / "events.jsonl")
    while run.poll() is None and (now := time.monotonic() - start) < seconds:
        for name, unit, value in measured(run.pid, folder, tail):
            series = found.setdefault(name, Series(unit))
            series.at.append(now)
            series.values.append(value)
        time.sleep(EVERY)
    return found


def measured(pid: int, folder: Path, tail: Tail) -> Iterator[tuple[str, str, float]]:
    """(name, unit, value) of all there is to look at."""
    logs = [re.match(r"(.+)-(\d+)\.log", file.name) for file in folder.glob("logs/*")]
    named = {int(match[2]): match[1] for match in logs if match}
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.Error):
            command = process.cmdline() or [""]
            host = re.search(r"/(host\d+)$", command[-1])
            name = "controller" if process.pid == pid else named.get(process.pid, "")
            name = name or (host[1] if host else f"child of {named.get(process.ppid(), 'it')}")
            yield f"{name} {process.pid}", "MiB", process.memory_full_info().uss / MIB
            yield f"{name} {process.pid} open files", "", process.num_fds()
    key = re.compile(rf"forgedsl-{pid}-")
    shared = [f for f in Path("/dev/shm").iterdir() if key.match(f.name)]
    yield "shared memory", "MiB", sum(f.stat().st_size for f in shared) / MIB
    tail.look()
    yield "groups that are ready and not trained", "", tail.ready
    yield "age of the newest event", "s", time.time() - tail.newest
    yield "steps", "", tail.steps


def table(found: dict[str, Series], minutes: float, code: int) -> str:
    """In Markdown; open files only where they changed."""
    steps = found["steps"].values[-1]
    lines = [
        f"{minutes:g} minutes, {steps:.0f} steps, {os.cpu_count()} cores, exit code {code}",
        "",
    ]
    lines += [
        "| | first | last | most | slope an hour | of the last half | largest step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, series in found.items():
        y = series.values
        if name == "steps" or (name.endswith("files") and len(set(y)) == 1):
            continue
        cells = [f"{v:.1f}" for v in (y[0], y[-1], max(y))]
        cells += ["{:+.2f} ± {:.2f}".format(*series.slope(begin)) for begin in (WARM, 0.5)]
        cells.append("{:+.1f} at {:.0f} s".format(*series.step()))
        lines.append(f"| {name} {series.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
