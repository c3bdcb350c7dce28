"""The memory table of `forgec plan` against a real run: growth of resident memory, phase by phase.

    benchmarks/memory.forge: a run with a tiny model -> resident memory after imports, by process
                             a run with 150 M parameters -> its growth over that, in each phase

    python benchmarks/memory.py [--keep FOLDER]

Memory is read 50 times a second while the run is going; a phase of a process is made of the spans
in events.jsonl. The first step is left out: only then has each process met every phase.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from forgedsl.services.vllm.memory import CPU_POOL

HERE = Path(__file__).parent
FORGE = HERE / "memory.forge"
TINY = ("layers=1", "hidden=64", "ffn=64", "vocab=64")
KINDS = {"train": "step", "sync": "sync", "rollout": "sample"}
MIB = 2**20


@dataclass(frozen=True)
class Measured:
    """One process and phase: bytes grown, bytes estimated."""

    service: str
    phase: str
    grown: float
    estimate: float

    @property
    def off(self) -> float:
        return self.estimate / self.grown - 1


class Watch(threading.Thread):
    """Reads the resident memory of the processes of a run until it is stopped."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(daemon=True)
        self.run_dir = run_dir
        self.seen: dict[str, list[tuple[float, int]]] = {}
        self.over = threading.Event()

    def run(self) -> None:
        pids: dict[str, psutil.Process] = {}
        looked = 0.0
        while not self.over.wait(0.02):
            if time.time() - looked > 0.2:
                looked = time.time()
                started = events_of(self.run_dir, "process.start")
                alive = [event for event in started if psutil.pid_exists(event["pid"])]
                pids = {event["service"]: psutil.Process(event["pid"]) for event in alive}
            for service, process in pids.items():
                try:
                    sample = (time.time(), own_memory(process.pid))
                except (OSError, KeyError):  # it has left, or is just leaving
                    continue
                self.seen.setdefault(service, []).append(sample)


def own_memory(pid: int) -> int:
    """Resident memory of a process without the files of its libraries; swapped pages count."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap")) * 1024


def events_of(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    if not path.exists():
        return []
    lines = (line for line in path.read_text().splitlines() if line.endswith("}"))
    return [event for event in map(json.loads, lines) if event["kind"] in kinds]


def watched(run_dir: Path, *overrides: str) -> Watch:
    """Run memory.forge to its end."""
    watch = Watch(run_dir)
    watch.start()
    command = [
        sys.executable,
        "-m",
        "forgedsl.cli.main",
        "run",
        str(FORGE),
        "--run-dir",
        str(run_dir),
    ]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, check=False)
    watch.over.set()
    watch.join()
    if done.returncode:
        raise SystemExit(done.stderr + done.stdout)
    return watch


def after_imports(run_dir: Path, watch: Watch) -> dict[str, int]:
    """Memory of each process when the tiny model was ready, less its KV pool: that is not tiny."""
    first = events_of(run_dir, "sync.start")[0]["time"]
    pools = {"generator": CPU_POOL}
    return {
        service: max([own for at, own in samples if at < first] or [samples[0][1]])
        - pools.get(service, 0)
        for service, samples in watch.seen.items()
    }


def spans(run_dir: Path, kind: str) -> list[tuple[float, float]]:
    """(begin, end) of the finished spans of a kind, those of the first step left out."""
    steps = events_of(run_dir, "step.start")
    begun = steps[1]["time"] if kind == "step" else steps[0]["time"]
    ends = events_of(run_dir, f"{kind}.end")
    found = [(end["time"] - end["seconds"], end["time"]) for end in ends]
    return [(start, end) for start, end in found if start >= begun - 1e-3]


def peak(samples: list[tuple[float, int]], windows: list[tuple[float, float]]) -> int:
    return max(rss for at, rss in samples if any(start <= at <= end for start, end in windows))


def estimates(service: str) -> dict[str, int]:
    """Bytes by phase, as `forgec plan` has them on this host."""
    from forgedsl.cli.host import host_of
    from forgedsl.cli.planning import plan_file

    planned = plan_file(FORGE, profile="auto", overrides=(), host=host_of("here", "plan"))
    assert planned.lowered is not None
    rank = planned.lowered.plan.memory.rank(service)
    assert rank is not None
    return {phase.name: phase.bytes for phase in rank.phases}


def measure(folder: Path) -> list[Measured]:
    tiny, whole = folder / "tiny", folder / "whole"
    imported = after_imports(tiny, watched(tiny, *TINY))
    watch = watched(whole)
    found = []
    for service in ("trainer", "generator", "reference"):
        for phase, bytes_ in estimates(service).items():
            kind = "logprobs" if (service, phase) == ("reference", "rollout") else KINDS[phase]
            grown = peak(watch.seen[service], spans(whole, kind)) - imported[service]
            found.append(Measured(service, phase, grown, bytes_))
    return found


def table(found: list[Measured]) -> str:
    lines = ["| process | phase | grown | estimate | off |", "|---|---|---|---|---|"]
    lines += [
        f"| {m.service} | {m.phase} | {m.grown / MIB:,.0f} MiB | {m.estimate / MIB:,.0f} MiB "
        f"| {m.off:+.0%} |"
        for m in found
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="keep the two run folders here")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as folder:
        print(table(measure(keep or Path(folder))))


if __name__ == "__main__":
    main()
