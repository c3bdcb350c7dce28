"""`forgec sim FILE`: simulates a run.

    FILE.forge --plan--> Job --simulate--> Result -> text | JSON
    latencies: the plan's cost model, or --calibrate RUN; --assume changes single ones

Nothing is launched. The hosts are those of the file's `cluster`, else this host, or the one that
`--host` describes. Exit codes: 0, 1 errors in the file, 2 bad usage, 4 it does not fit the host.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli import passes
from forgedsl.cli.parser import Parser, at_least, whole

if TYPE_CHECKING:
    from forgedsl.lower.job import Job
    from forgedsl.sim.inject import Fault
    from forgedsl.sim.latency import Latencies
    from forgedsl.sim.result import Result

STEPS = 12


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def parser() -> Parser:
    parser = Parser("sim", command.__doc__, "FILE")
    passes.add_file(parser)
    passes.add_profile(parser)
    parser.add_overrides()
    parser.add_argument(
        "--steps", type=at_least(1), default=STEPS, metavar="N", help="steps to simulate"
    )
    parser.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="N",
        help="random seed of lengths, latencies and failures",
    )
    passes.add_faults(parser)
    parser.add_argument(
        "--calibrate", type=Path, metavar="RUN", help="use the latencies measured in this run"
    )
    passes.add_host(parser)
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    passes.add_passes(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    steps: int,
    seed: int,
    assume: list[str] | None,
    inject: list[str] | None,
    calibrate: Path | None,
    host: str,
    format_: Format,
    print_after: list[str] | None,
    timings: bool,
) -> None:
    """Predict step time, idle time, policy ages and the effect of faults, by simulation.

    FAULT is kill:NAME@step=5 (a process dies), slow:NAME=3@step=2..6 (three times as slow in these
    steps) or fail:NAME=0.02 (2 % of its calls fail). NAME[1] is the second replica of a service.

    Examples:
      forgec sim pipelines/grpo_math.forge --profile cluster
      forgec sim pipelines/grpo_math.forge --host 16xH200 generator.replicas=4 --steps 50
      forgec sim x.forge --assume generator.tokens='lognormal(800, 1.0)' --assume judge.seconds=2
      forgec sim x.forge --inject kill:generator[1]@step=5 --inject slow:generator[0]=3@step=8..12
      forgec sim x.forge --calibrate runs/x-20261120-101500 prompts=64
    """
    from forgedsl.cli.compiling import print_planned
    from forgedsl.cli.host import host_of
    from forgedsl.cli.latencies import LatencyError, faults_of, latencies_of
    from forgedsl.cli.planning import plan_file
    from forgedsl.plan.host import host_text

    where = host_of(host, "sim")
    planned = plan_file(
        file, profile=profile, overrides=tuple(set_ or ()), timings=timings, host=where,
        set_files=tuple(set_file or ()), print_after=passes.checked_passes("sim", print_after),
    )  # fmt: skip
    print_planned(planned.loaded, profile, where)
    if planned.lowered is None:
        raise SystemExit(planned.code)
    lowered = planned.lowered
    try:
        latencies = latencies_of(lowered, assume or [], calibrate)
        faults = faults_of(lowered.job, inject or [])
    except LatencyError as error:
        print(f"forgec sim: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    on = host_text(lowered.plan.host)
    sys.stdout.write(_simulated(lowered.job, latencies, faults, steps, seed, format_, on))


def _simulated(
    job: Job,
    latencies: Latencies,
    faults: list[Fault],
    steps: int,
    seed: int,
    format_: Format,
    host: str,
) -> str:
    import json

    from forgedsl.sim.latency import at_longest
    from forgedsl.sim.result import summary
    from forgedsl.sim.text import render
    from forgedsl_runtime.sim.simulation import simulate

    def run(latencies: Latencies, faults: list[Fault]) -> Result:
        return simulate(job, latencies, steps=steps, seed=seed, faults=faults)

    result = run(latencies, faults)
    undisturbed = run(latencies, []) if faults else None
    longer = at_longest(latencies)
    longest = None if longer is None else run(longer, faults)
    if format_ is Format.TEXT:
        name = f"{job.name} (profile {job.profile})" if job.profile else job.name
        return render(name, result, latencies, faults, undisturbed, longest=longest, host=host)
    body = {"format_version": "1.0", "name": job.name, "seed": seed, "host": host}
    body |= summary(result)
    if undisturbed is not None:
        body["undisturbed"] = summary(undisturbed)
    if longest is not None:
        body["longest_completions"] = summary(longest)
    body["assumed"] = list(latencies.notes)
    return json.dumps(body, indent=1) + "\n"
