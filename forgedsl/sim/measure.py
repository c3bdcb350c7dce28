"""Compares a run with its plan's estimates, for an entry of the calibration file.

Lowered --estimate_of--> RUN/estimate.json (stages without calibration)
RUN/{estimate.json, events.jsonl, metrics.jsonl} --measure--> Measured

Step times come from the plan's own formula (`Cost`), so a calibrated plan of the run predicts its
measured step.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from forgedsl.lower.build import Lowered
from forgedsl.operations.registry import operation
from forgedsl.plan.calibration import device_kind, run_name
from forgedsl.plan.cost import Cost, plan_cost
from forgedsl.plan.plan import Plan
from forgedsl.plan.reward_times import Scoring
from forgedsl.plan.stage import Stage
from forgedsl.records import replace
from forgedsl.runs.data import RunData
from forgedsl.sim.calibrate import FIRST, CalibrationError, after_start, usable_run
from forgedsl.sim.estimate import UnknownModelError, from_plan
from forgedsl.sim.fit import union
from forgedsl.sim.reward_times import reward_seconds
from forgedsl.sim.scaling import ESTIMATE, stored
from forgedsl.sizes.meshes import transport_of
from forgedsl.types.flow import Role

BISECTIONS = 50
JUDGE = "judge"
"""the `op` of stages in which an engine reads for LLM judges"""
EMPTY: Mapping[str, float] = {}


class Measured(NamedTuple):
    """The entry, and the seconds of a step: as estimated, as measured, and as estimated from now
    on."""

    known: dict[str, dict[str, Any]]
    before: float
    took: float
    after: float


def estimate_of(lowered: Lowered) -> dict[str, Any]:
    """Return a plan's uncalibrated estimate; `kind` and `key` are the names in the calibration
    file. `latencies` are what `sim --calibrate` compares the run with."""
    plan, graph = uncalibrated(lowered.plan), lowered.graph
    cost = plan_cost(plan.request, graph, plan.schedule, plan.colocate, plan.memory.ranks)
    ops = {s.node: JUDGE for s in cost.stages} | {node.name: node.op for node in graph.nodes}
    ways = {node.name: f"sync {transport_of(plan.host, plan.meshes, node)}" for node in graph.syncs}
    stages = [{"node": s.node, "op": ops[s.node], "service": s.service,
               "lane": cost.lane(s.service), "tokens": s.tokens, "seconds": s.seconds,
               "latency": s.latency, "alone": s.alone, "batches": s.batches,
               "kind": device_kind(plan.host.gpu, s.device),
               "key": ways.get(s.node, ops[s.node])} for s in cost.stages]  # fmt: skip
    name = run_name(lowered.job.name, lowered.job.profile)
    scores = [{"reward": each.reward, "calls": each.calls, "procs": each.procs,
               "at_once": each.at_once} for each in cost.scorings]  # fmt: skip
    found = {"name": name, "overlapped": cost.overlapped, "lag": cost.lag, "stages": stages,
             "scores": scores}  # fmt: skip
    try:
        return found | {"latencies": stored(from_plan(lowered.job, graph, plan))}
    except UnknownModelError:
        return found


def uncalibrated(plan: Plan) -> Plan:
    """Return a plan whose rates are not corrected by a calibration file."""
    host = replace(plan.host, calibration=None)
    return replace(plan, host=host, request=replace(plan.request, host=host))


def measure(folder: Path) -> Measured:
    """Measure a run. Raises CalibrationError."""
    data = usable_run(folder)
    try:
        estimate = json.loads((folder / ESTIMATE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CalibrationError(
            f"{folder} has no {ESTIMATE}: only runs of a .forge file store the estimates of the "
            "plan"
        ) from error
    if not estimate["stages"]:
        raise CalibrationError(f"the plan of {folder} did not know how large its models are")
    if estimate["overlapped"] and "lag" not in estimate:
        raise CalibrationError(
            f"{folder} was run by an earlier version, whose {ESTIMATE} does not tell how batches "
            "overlap; run the file again"
        )
    took = statistics.median(row["step_s"] for row in data.rows[FIRST:])
    calls = reward_seconds(data).get(estimate["name"], {})
    return compare(estimate, figures(estimate, data), calls, took=took, run=folder.resolve().name)


def figures(estimate: Mapping[str, Any], data: RunData) -> dict[str, tuple[float, float]]:
    """Return the measured (seconds, tokens) of a step per node, for the nodes that worked."""
    steps = len(data.rows) - FIRST
    trained = statistics.fmean(row["tokens"] for row in data.rows[FIRST:])
    found = {}
    # LLM judges read inside of scores
    shown = [s for s in estimate["stages"] if s["op"] in data.spans]
    for node, op, service in ((s["node"], s["op"], s["service"]) for s in shown):
        samples = Role.SAMPLES in operation(op).roles
        who = "to" if Role.TRANSFERS in operation(op).roles else "service"
        spans = [s for s in after_start(data, op)
                 if s.fields.get(who) == service and "eval" not in s.fields]  # fmt: skip
        busy = [(s.fields.get("engine_start", s.start), s.fields.get("engine_end", s.end))
                for s in spans]  # fmt: skip
        if spans:
            sampled = sum(s.fields["tokens"] for s in spans) / steps if samples else trained
            found[node] = union(busy) / steps, sampled
    return found


def compare(
    estimate: Mapping[str, Any],
    seen: Mapping[str, tuple[float, float]],
    calls: Mapping[str, float] = EMPTY,
    *,
    took: float,
    run: str,
) -> Measured:
    """Compute times and lengths from the (seconds, tokens) of nodes; then scale all times by a
    factor, so that the estimate of the run equals its measured step time. `calls`: seconds of a
    call by reward."""
    stages = [s for s in estimate["stages"] if s["node"] in seen]
    lengths = {s["node"]: seen[s["node"]][1] / s["tokens"] for s in stages if s["tokens"]}
    plain = cost_of(estimate, {}, lengths)
    nodes: dict[tuple[str, str], list[str]] = {}
    for s in stages:
        nodes.setdefault((s["kind"], s["key"]), []).append(s["node"])
    times = {
        key: _times(plain, nodes[key], sum(seen[node][0] for node in nodes[key]), took)
        for key in nodes
    }
    rest = took / cost_of(estimate, times, lengths, calls).step_seconds
    times = {key: float(f"{value * rest:.4g}") for key, value in sorted(times.items())}
    devices: dict[str, Any] = {}
    for (kind, key), value in times.items():
        new = {"run": run, "date": f"{datetime.now(UTC):%Y-%m-%d}", "times": {}}
        devices.setdefault(kind, new)["times"][key] = value
    shares = {node: float(f"{part:.4g}") for node, part in lengths.items()}
    known = {"devices": devices, "lengths": {estimate["name"]: shares}}
    before, after = cost_of(estimate, {}, {}), cost_of(estimate, times, lengths, calls)
    return Measured(known, before.step_seconds, took, after.step_seconds)


def cost_of(
    estimate: Mapping[str, Any],
    times: Mapping[tuple[str, str], float],
    lengths: Mapping[str, float],
    calls: Mapping[str, float] = EMPTY,
) -> Cost:
    """Return the plan's cost with other times (by kind and key), lengths (by node) and seconds of
    calls (by reward). Services of a lane count as one."""
    stages = (
        Stage(
            node=s["node"], service=s["lane"], device="", tokens=s["tokens"], flops=0.0, bytes=0.0,
            seconds=s["seconds"], latency=s.get("latency", 0.0), alone=s.get("alone", 0.0),
            batches=s.get("batches", 1.0), detail="", roles=_roles(s["op"]),
        ).slower(times.get((s["kind"], s["key"]), 1.0) * lengths.get(s["node"], 1.0))
        for s in estimate["stages"]
    )  # fmt: skip
    return Cost(
        stages=tuple(stages), overlapped=estimate["overlapped"], lag=estimate.get("lag", 0),
        sharing=(), dead=(), unknown=(), scorings=tuple(_scorings(estimate, calls)),
    )  # fmt: skip


def _roles(op: str) -> frozenset[Role]:
    return frozenset() if op == JUDGE else operation(op).roles


def _scorings(estimate: Mapping[str, Any], calls: Mapping[str, float]) -> Iterator[Scoring]:
    """Yield the measured calls of rewards. Estimates of earlier versions have none."""
    for each in estimate.get("scores", ()):
        if each["reward"] in calls:
            yield Scoring(**each, call=calls[each["reward"]], measured=True)


def _times(plain: Cost, nodes: Sequence[str], busy: float, step: float) -> float:
    """Return the factor on the times of nodes with which they work `busy` seconds of a step.

    Busy seconds of an engine that samples several batches at a time also depend on how these
    overlap, so they only bound the factor. The lower bound assumes the overlap of the plan, the
    upper one decode steps of full width. Within the bounds, the factor nearest to 1 is taken.
    """
    stages = [stage for stage in plain.stages if stage.node in nodes]
    most = busy / sum(stage.seconds for stage in stages)

    def work(times: float) -> float:
        return sum(plain.work(stage.slower(times), step) for stage in stages)

    least, high = 0.0, most  # no stage works less than its seconds
    for _ in range(BISECTIONS):
        middle = (least + high) / 2
        if work(middle) < busy:
            least = middle
        else:
            high = middle
    return min(max(high, 1.0), most)
