"""What each shipped pipeline learns on a CPU, three seeds of it, against what its header states.

    forgec run FILE --seed 17, 2, 3 --set schedule.steps=N  --metrics.jsonl--> first -> last, time

    python benchmarks/learning.py [NAME ...] [--seeds 17 2 3] [--keep DIR]

A header says `60 steps raise reward_mean by 0.3`. `first` and `last` are means of that metric over
ten steps at either end, or an eval's first and last value. A run that rises (or falls) by less
fails the command, as does one that takes over six minutes. Times hold for two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINUTES = 6


@dataclass(frozen=True)
class Claim:
    """What the header of a pipeline says that so many steps do."""

    metric: str
    by: float
    """its rise; its fall, if negative"""
    steps: int

    @property
    def window(self) -> int:
        """Steps of a mean at either end; an eval is a mean already."""
        return 1 if self.metric.startswith("eval/") else 10


SAYS = re.compile(r"(\d+) steps (raise|lower) ([\w/]+) by (\d[\d.]*\d|\d)")


def claims() -> dict[str, Claim]:
    """Of each shipped pipeline whose header makes one."""
    found = {}
    for path in sorted((ROOT / "pipelines").glob("*.forge")):
        lines = path.read_text("utf-8").splitlines()
        header = " ".join(line.removeprefix("## ") for line in lines if line.startswith("## "))
        if said := SAYS.search(header):
            by = float(said[4]) * (1 if said[2] == "raise" else -1)
            found[path.stem] = Claim(said[3], by, int(said[1]))
    return found


def measured(claim: Claim, run: Path) -> tuple[float, float]:
    """The metric at the start of a run and at its end."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    values = [row[claim.metric] for row in rows if claim.metric in row]
    return statistics.fmean(values[: claim.window]), statistics.fmean(values[-claim.window :])


def learned(name: str, claim: Claim, seed: int, run: Path) -> tuple[str, bool]:
    """One run: its cell of the table, and whether it did what the header says."""
    started = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "forgedsl.cli.main",
        "run",
        f"pipelines/{name}.forge",
        "--seed",
        str(seed),
        "--quiet",
    ]
    command += ["--run-dir", str(run), "--set", f"schedule.steps={claim.steps}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stderr}")
    took = time.monotonic() - started
    first, last = measured(claim, run)
    rose = (last - first) / claim.by >= 1
    cell = f"{first:.3f} -> {last:.3f}, {took:.0f} s"
    return cell, rose and took <= 60 * MINUTES


def main() -> int:
    known = claims()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(known), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[17, 2, 3])
    parser.add_argument("--keep", type=Path, help="a folder for the runs' folders")
    options = parser.parse_args()
    fine = True
    print("| pipeline | metric | by | " + " | ".join(f"seed {s}" for s in options.seeds) + " |")
    print("|---|---|---|" + "---|" * len(options.seeds))
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names:
            claim = known[name]
            print(f"| {name} | {claim.metric} | {claim.by:+g} |", end="", flush=True)
            for seed in options.seeds:
                folder = (options.keep or Path(scratch)) / f"{name}-{seed}"
                cell, good = learned(name, claim, seed, folder)
                fine &= good
                print(f" {cell}{'' if good else ' **no**'} |", end="", flush=True)
            print()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
