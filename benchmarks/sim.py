"""The simulator: how fast it is, and how well it agrees with rehearsals and with real runs.

    python benchmarks/sim.py speed                    10,000 GPUs, and cost per event
    python benchmarks/sim.py stub                     against rehearsals on real meshes
    python benchmarks/sim.py real RUN OTHER ...       calibrated on RUN, predicting the others

Run it from the root of the repository on an otherwise idle machine; times of `speed` are CPU times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HERE = {"host": 0}
HOST = "here"
"""the host that runs are planned for"""
PIPELINE = ROOT / "pipelines/grpo_math.forge"
GPUS_10K = (
    "cluster.hosts=1250", "trainer.hosts=128", "trainer.parallel.dp_shard=1024",
    "generator.replicas=4488", "prompts=1024", "group=16", "schedule.max_policy_age=2", "beta=0.0",
)  # fmt: skip
SETTINGS = {
    "8 replicas": ("beta=0.0", "prompts=8", "schedule.steps=16", "held_out.limit=16"),
    "2 replicas, age 2": (
        "beta=0.0", "prompts=8", "generator.replicas=2", "schedule.steps=10", "held_out.limit=16",
        "schedule.max_policy_age=2",
    ),
    "a reference that is slow": ("prompts=4", "schedule.steps=8", "held_out.limit=16"),
}  # fmt: skip
LATENCIES = (
    "generator.tokens=lognormal(150, 0.7)", "generator.load=0.2", "trainer.publish=0.2",
    "trainer.step=0.3",
)  # fmt: skip


def lowered(profile: str, overrides: tuple[str, ...], host: Any = None) -> Any:
    from forgedsl.cli.planning import plan_file

    planned = plan_file(PIPELINE, profile=profile, overrides=overrides, host=host)
    assert planned.lowered is not None, list(planned.loaded.reporter)
    return planned.lowered


def model(made: Any, assumed: tuple[str, ...] = ()) -> Any:
    from forgedsl.sim.assume import assume
    from forgedsl.sim.estimate import from_plan

    return assume(from_plan(made.job, made.graph, made.plan), assumed)


def speed() -> None:
    """Cost per event, for jobs of growing size and length."""
    from forgedsl_runtime.sim.simulation import simulate

    print("| GPUs | completions a step | steps | events | CPU s | us per event |")
    print("|---|---|---|---|---|---|")
    cases = [((), 32, 20), (GPUS_10K, 10_000, 2), (GPUS_10K, 10_000, 4), (GPUS_10K, 10_000, 8)]
    for overrides, gpus, steps in cases:
        made = lowered("cluster", overrides)
        latencies = model(made)
        start = time.process_time()
        result = simulate(made.job, latencies, steps=steps)
        spent = time.process_time() - start
        size = made.job.schedule.prompts * made.job.params["group"]
        print(
            f"| {gpus:,} | {size:,} | {steps} | {result.events:,} | {spent:.2f} "
            f"| {1e6 * spent / result.events:.1f} |"
        )


def stub() -> None:
    """Step times of rehearsals and of the simulator, from one latency model."""
    from forgedsl_runtime.sim.simulation import simulate

    print("| setting | rehearsal s/step | simulator s/step | off |")
    print("|---|---|---|---|")
    for name, overrides in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            command = [sys.executable, "-m", "forgedsl.cli.main", "run", "--stub", str(PIPELINE)]
            options = [o for text in LATENCIES for o in ("--assume", text)]
            subprocess.run(
                [*command, "--profile", "cluster", "--run-dir", str(run_dir), *options, *overrides],
                check=True, capture_output=True,
            )  # fmt: skip
            real = _steady([row["step_s"] for row in _rows(run_dir)])
        made = lowered("cluster", overrides)
        result = simulate(made.job, model(made, LATENCIES), steps=None, seed=made.job.seed)
        told = _steady([step.seconds for step in result.steps])
        print(f"| {name} | {real:.2f} | {told:.2f} | {told / real - 1:+.1%} |")


def real(folders: list[Path]) -> None:
    """Calibrated on the first run, the step times of all."""
    from forgedsl.cli.host import find_host
    from forgedsl.sim.calibrate import calibrated
    from forgedsl_runtime.sim.simulation import simulate

    here = find_host(HOST)
    print("| run | measured s/step | simulated s/step | off |")
    print("|---|---|---|---|")
    for folder in folders:
        job = json.loads((folder / "job.json").read_text())
        schedule, params = job["schedule"], job["params"]
        made = lowered("cpu", _overrides(job), here)
        latencies = calibrated(model(made), made.job, folders[0], simulate)
        result = simulate(made.job, latencies, steps=schedule["steps"])
        measured = statistics.median(row["step_s"] for row in _rows(folder)[3:])
        told = statistics.median(step.seconds for step in result.steps[3:])
        what = f"{folder.name}: prompts {params['prompts']}, group {params['group']}"
        mark = " (calibrated on it)" if folder == folders[0] else ""
        print(f"| {what}{mark} | {measured:.3f} | {told:.3f} | {told / measured - 1:+.1%} |")


def _overrides(job: dict[str, Any]) -> tuple[str, ...]:
    """What the runs of this benchmark may differ in."""
    limits = [spec["limit"] for spec in job["evals"].values()]
    meshes = {name: service["mesh"] for name, service in job["services"].items()}
    hosts = 1 + max(place["host"] for mesh in meshes.values() for place in mesh["places"] or [HERE])
    return (
        *(f"{name}={job['params'][name]}" for name in ("prompts", "group", "max_new")),
        f"generator.replicas={meshes['generator']['replicas']}",
        *([f"launcher={job['launcher']['kind']}", f"cluster.hosts={hosts}"] if hosts > 1 else []),
        f"schedule.steps={job['schedule']['steps']}",
        f"schedule.max_policy_age={job['schedule']['max_policy_age']}",
        *([f"held_out.limit={limits[0]}"] if limits[0] else []),
    )


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _steady(seconds: list[float]) -> float:
    return statistics.fmean(seconds[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("speed", "stub", "real"))
    parser.add_argument("runs", nargs="*", type=Path)
    given = parser.parse_args()
    {"speed": speed, "stub": stub, "real": lambda: real(given.runs)}[given.what]()


if __name__ == "__main__":
    main()
