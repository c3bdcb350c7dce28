"""What each shipped pipeline learns on a CPU, three seeds of it, against what its header states.

    forgec run FILE --seed 17, 2, 3 --set schedule.steps=N  --metrics.jsonl--> first -> last, time

    python benchmarks/learning.py [NAME ...] [--seeds 17 2 3] [--keep DIR]

`first` and `last` are means of the metric over so many steps at either end, or an eval's first and
last value. A run that rises (or falls) by less than `by` fails the command, as does one that takes
over six minutes. Times hold for two cores without other work.
"""

from __future__ import annotations

import argparse
import json
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
class Case:
    """A pipeline, what to look at, and by how much it has to rise (fall, if negative)."""

    metric: str
    by: float
    steps: int | None = None
    """of the run; None: as the file says"""
    window: int = 10
    """steps of a mean; 1 for evals"""


REWARD = Case("reward_mean", 0.3, steps=60)
CASES = {
    "grpo_math": REWARD,
    "dapo_math": Case("reward_mean", 0.5, steps=60),
    "gspo_math": Case("reward_mean", 0.2, steps=60),
    "cispo_math": REWARD,
    "sapo_math": REWARD,
    "rloo_math": REWARD,
    "reinforce_math": REWARD,
    "distill_math": Case("reward_mean", 0.15, steps=40),
    "dpo_math": Case("loss/accuracy", 0.15),
    "reward_math": Case("loss/accuracy", 0.15),
    "sft_math": Case("loss", -0.5),
    "skills_sft": Case("loss", -0.5),
    "ppo_critic": Case("eval/held_out", 0.4, window=1),
    "curriculum_math": Case("eval/held_out", 0.4, window=1),
    "replay_math": Case("eval/held_out", 0.4, window=1),
    "guess_math": Case("eval/held_out", 0.2, window=1),
    "desk": Case("eval/held_out", 0.55, window=1),
    "writing": Case("eval/ruled", 0.08, window=1),
}


def measured(case: Case, run: Path) -> tuple[float, float]:
    """The metric at the start of a run and at its end."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    values = [row[case.metric] for row in rows if case.metric in row]
    return statistics.fmean(values[: case.window]), statistics.fmean(values[-case.window :])


def learned(name: str, seed: int, run: Path) -> tuple[str, bool]:
    """One run: its cell of the table, and whether it did what is wanted."""
    case = CASES[name]
    words = [f"schedule.steps={case.steps}"] if case.steps else []
    started = time.monotonic()
    command = ["forgec", "run", f"pipelines/{name}.forge", "--seed", str(seed), "--quiet"]
    command += ["--run-dir", str(run), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stderr}")
    took = time.monotonic() - started
    first, last = measured(case, run)
    rose = (last - first) / case.by >= 1
    cell = f"{first:.3f} -> {last:.3f}, {took:.0f} s"
    return cell, rose and took <= 60 * MINUTES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[17, 2, 3])
    parser.add_argument("--keep", type=Path, help="a folder for the runs' folders")
    options = parser.parse_args()
    fine = True
    print("| pipeline | metric | by | " + " | ".join(f"seed {s}" for s in options.seeds) + " |")
    print("|---|---|---|" + "---|" * len(options.seeds))
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names:
            print(f"| {name} | {CASES[name].metric} | {CASES[name].by:+g} |", end="", flush=True)
            for seed in options.seeds:
                folder = (options.keep or Path(scratch)) / f"{name}-{seed}"
                cell, good = learned(name, seed, folder)
                fine &= good
                print(f" {cell}{'' if good else ' **no**'} |", end="", flush=True)
            print()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
