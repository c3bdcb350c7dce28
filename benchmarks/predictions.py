"""Step times of GPU runs, predicted before they run: by the plan, by a simulation, and by a
simulation that is calibrated on one run.

    shapes of rl_step.py --plan, forgec sim--> predictions --run--> seconds of a step --> table

    python benchmarks/predictions.py --host 2xH200            predictions alone, no GPU needed
    python benchmarks/predictions.py --run [--names 'a;b'] [--keep FOLDER]    on two such GPUs

Each case differs from a base case, with which the rates of the plan were measured. Runs of one GPU
are calibrated on the base case of one GPU, those of two on that of two. A row is printed before its
run starts, without its last columns, and again after it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import rl_step

STEPS, SKIPPED = 12, 2
"""steps of a run and of a simulation (a calibration needs 12), and how many at the beginning do not
count"""

REWARD = "drawn.seconds=0.0001"
"""of rl_step.py; without this, a simulation assumes 0.05 s for a reward in Python"""
AUTO = ("trainer.batch.rows=auto", "trainer.memory.activation_checkpoint=auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run: GPUs, size of the model, and what it sets."""

    gpus: int
    size: str = "0.6B"
    settings: tuple[str, ...] = ()
    sync: str = ""
    new: int = 1024
    """tokens of a completion; nearly all reach this limit"""


CASES = {
    "one": Case(gpus=1),
    "one, 512 new tokens": Case(gpus=1, new=512),
    "one, 8 prompts": Case(gpus=1, settings=("prompts=8",)),
    "one, groups of 16": Case(gpus=1, settings=("group=16",)),
    "one, 1.7B, 512 new tokens": Case(gpus=1, size="1.7B", settings=AUTO, new=512),
    "two": Case(gpus=2),
    "two, 512 new tokens": Case(gpus=2, new=512),
    "two, 32 prompts": Case(gpus=2, settings=("prompts=32",)),
    "two, groups of 4": Case(gpus=2, settings=("group=4",)),
    "two, old keys kept": Case(gpus=2, sync="on_swap = keep"),
    "two, age 2, old keys kept": Case(
        gpus=2, sync="on_swap = keep", settings=("schedule.max_policy_age=2",)
    ),
    "two, 1.7B": Case(gpus=2, size="1.7B", settings=AUTO),
}
BASES = {1: "one", 2: "two"}


def overrides(case: Case) -> tuple[str, ...]:
    return (
        *case.settings, f"size={case.size}", f"max_new={case.new}",
        f"schedule.steps={STEPS}",
    )  # fmt: skip


def predicted(file: Path, case: Case, host: str, run: Path | None = None) -> dict[str, float]:
    """Seconds of a step by the plan, by a simulation, and by one that is calibrated on `run`."""
    from forgedsl.cli.planning import plan_file
    from forgedsl.plan.host import described_host
    from forgedsl.sim.assume import assume
    from forgedsl.sim.calibrate import calibrated
    from forgedsl.sim.estimate import from_plan
    from forgedsl_runtime.sim.simulation import simulate

    profile = "one" if case.gpus == 1 else "none"
    machine = described_host(f"{case.gpus}x{host}")
    assert not isinstance(machine, str), machine
    made = plan_file(file, profile=profile, overrides=overrides(case), host=machine).lowered
    assert made is not None
    free = assume(
        from_plan(made.job, made.graph, made.plan),
        (f"generator.tokens={case.new}", "generator.prompt=256", REWARD),
    )
    found = {"plan": made.plan.cost.step_seconds}
    models = {"simulated": free}
    if run is not None:
        models["calibrated"] = calibrated(free, made.job, run, simulate)
    for name, latencies in models.items():
        steps = simulate(made.job, latencies, steps=STEPS).steps[SKIPPED:]
        found[name] = statistics.fmean(step.seconds for step in steps)
    return found


def measured(folder: Path, name: str, case: Case) -> float:
    """Run the case, and return the mean seconds of its steps."""
    args = Namespace(
        gpus=case.gpus, prompt=256, size=case.size, cut=True, profile=None,
        settings=[*case.settings, f"max_new={case.new}", "checkpoint.every=1000"],
    )  # fmt: skip
    rl_step.run(folder, name, STEPS, args)
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return statistics.fmean(json.loads(line)["step_s"] for line in lines[SKIPPED:STEPS])


def row(name: str, found: dict[str, float], seconds: float | None) -> str:
    cells = [name]
    for key in ("plan", "simulated", "calibrated"):
        value = found.get(key)
        off = f", {value / seconds - 1:+.0%}" if value and seconds else ""
        cells.append("" if value is None else f"{value:.2f} s{off}")
    cells.append("" if seconds is None else f"{seconds:.2f} s")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--host", default="H200", help="GPU to predict for, as in `2xH200`")
    parser.add_argument("--run", action="store_true", help="run the cases too")
    parser.add_argument("--keep", type=Path, help="keep the run folders in this folder")
    parser.add_argument("--names", default=";".join(CASES), help="cases, separated by `;`")
    given = parser.parse_args()
    gpu = given.host.partition("x")[2] or given.host
    chosen = {name: CASES[name] for name in given.names.split(";") if name in CASES}
    runs: dict[int, Path] = {}
    print("| case | planned | simulated | calibrated on the first row | measured |")
    print("|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, case in chosen.items():
            own = folder / name.replace(" ", "_").replace(",", "")
            own.mkdir(parents=True)
            rl_step.inputs(own, 256, case.sync)
            found = predicted(own / "rl_step.forge", case, gpu, runs.get(case.gpus))
            print(row(name, found, None), flush=True)
            if not given.run:
                continue
            seconds = measured(own, "run", case)
            if name == BASES[case.gpus]:
                runs[case.gpus] = own / "run"
            print(row(name, found, seconds), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
