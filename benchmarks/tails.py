"""The tail of long answers, simulated for GPUs: what routing, moving and a policy age give.

    lengths, the plan's engine --decode step by step--> seconds until the last answer ends
    rl_step.forge --forgec sim--> seconds of a step, at each policy age

    python benchmarks/tails.py [--host 8xH200] [--size 4B] [--tokens 'lognormal(3000, 0.9)']

Four trainer GPUs and four replicas, 32 prompts x 8 answers of at most 16,384 tokens. Half of the
variance of the lengths is between prompts. `moved` is a bound: at each moment running answers are
spread evenly over the replicas, and moving one costs nothing. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rl_step

from forgedsl.sim.latency import Engine, Latencies, completion_tokens

REPLICAS, PROMPTS, GROUP, MOST, PROMPT = 4, 32, 8, 16_384, 256
REWARD = "drawn.seconds=0.0001"
"""as in predictions.py"""
STRIDE = 32
"""tokens that are decoded at once in this calculation"""
ASYNC = "schedule async { steps = 9, max_policy_age = 1 }"
AGES = {
    "synchronous": ("schedule sync { steps = 9 }", ""),
    "age 1": (ASYNC, ""),
    "age 1, old keys kept": (ASYNC, "on_swap = keep"),
    "age 2, old keys kept": (ASYNC.replace("age = 1", "age = 2"), "on_swap = keep"),
    "age 4, old keys kept": (ASYNC.replace("age = 1", "age = 4"), "on_swap = keep"),
}


def planned(args: argparse.Namespace, schedule: str, sync: str) -> tuple[Latencies, Any]:
    """The latency model and the job of rl_step.forge with this schedule."""
    from forgedsl.cli.planning import plan_file
    from forgedsl.plan.host import described_host
    from forgedsl.sim.assume import assume
    from forgedsl.sim.estimate import from_plan

    host = described_host(args.host)
    assert not isinstance(host, str), host
    settings = (
        f"size={args.size}", f"max_new={MOST}", f"prompts={PROMPTS}", f"group={GROUP}",
        "policy.context=32768", f"trainer.batch.seq_len={MOST + 1024}", "trainer.batch.rows=auto",
        "trainer.memory.activation_checkpoint=auto", f"generator.replicas={REPLICAS}",
        "trainer.procs=4",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rl_step.inputs(Path(folder), PROMPT, sync)
        file = Path(folder) / "rl_step.forge"
        file.write_text(file.read_text().replace(ASYNC, schedule))
        made = plan_file(file, profile="none", overrides=settings, host=host).lowered
    assert made is not None
    assumed = (f"generator.tokens={args.tokens}", f"generator.prompt={PROMPT}", REWARD)
    return assume(from_plan(made.job, made.graph, made.plan), assumed), made.job


def seconds(engine: Engine, lengths: Sequence[Sequence[int]]) -> float:
    """Seconds until the last answer ends; `lengths` are those of each replica."""
    return max(_alone(engine, each, 1) for each in lengths)


def moved(engine: Engine, lengths: Sequence[Sequence[int]]) -> float:
    """The same, if running answers are spread evenly over the replicas at each moment."""
    return _alone(engine, [length for each in lengths for length in each], len(lengths))


def _alone(engine: Engine, lengths: Sequence[int], replicas: int) -> float:
    """Seconds of one replica, or of several that share all answers evenly."""
    total, place, left = 0.0, 0, sorted(lengths)
    while left:
        count = min(STRIDE, left[0] - place)
        running = -(-len(left) // replicas)
        context = PROMPT / engine.siblings + place + count / 2
        each = engine.decode_empty + engine.decode_context * context
        total += count * (engine.decode + running * each)
        place += count
        left = [length for length in left if length > place]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="8xH200")
    parser.add_argument("--size", default="4B")
    parser.add_argument("--tokens", default="lognormal(3000, 0.9)", help="lengths of answers")
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args()
    latencies, _ = planned(args, *AGES["synchronous"])
    engine = latencies.engines["generator"]
    spread, together, bound = [], [], []
    for seed in range(args.draws):
        lengths = [
            round(completion_tokens(latencies, "generator", seed, group, sibling))
            for group in range(PROMPTS)
            for sibling in range(GROUP)
        ]
        by_answer = [lengths[i::REPLICAS] for i in range(REPLICAS)]
        by_group = [
            [n for at, n in enumerate(lengths) if at // GROUP % REPLICAS == i]
            for i in range(REPLICAS)
        ]
        spread.append(seconds(engine, by_answer))
        together.append(seconds(engine, by_group))
        bound.append(moved(engine, by_answer))
    print(f"{args.size}, {args.host}, {args.tokens}")
    usual = statistics.fmean(spread)
    for name, found in (
        ("least loaded", spread), ("sticky: siblings together", together), ("moved", bound)
    ):  # fmt: skip
        mean = statistics.fmean(found)
        print(f"| {name} | {mean:.1f} s | {mean / usual - 1:+.0%} |")
    for name, (schedule, sync) in AGES.items():
        _print_age(args, name, schedule, sync)


def _print_age(args: argparse.Namespace, name: str, schedule: str, sync: str) -> None:
    from forgedsl_runtime.sim.simulation import simulate

    latencies, job = planned(args, schedule, sync)
    found = simulate(job, latencies, steps=16)
    busy = 1 - found.sampler_idle("generator")
    print(
        f"| {name} | {found.step_seconds:.1f} s | engines busy {busy:.0%}, "
        f"trainer {1 - found.trainer_idle:.0%} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
