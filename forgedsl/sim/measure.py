"""Compares a run with its plan's estimates, for an entry of the calibration file.

Lowered --estimate_of--> RUN/estimate.json (stages without calibration)
RUN/{estimate.json, events.jsonl, metrics.jsonl} --measure--> Measured
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from forgedsl.lower.build import Lowered
from forgedsl.operations.registry import operation
from forgedsl.plan.calibration import device_kind, run_name
from forgedsl.plan.cost import plan_cost
from forgedsl.plan.plan import Plan
from forgedsl.records import replace
from forgedsl.runs.data import RunData
from forgedsl.sim.calibrate import FIRST, CalibrationError, after_start, usable_run
from forgedsl.sim.estimate import UnknownModelError, from_plan
from forgedsl.sim.fit import union
from forgedsl.sim.scaling import ESTIMATE, stored
from forgedsl.sizes.meshes import transport_of
from forgedsl.types.flow import Role


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
    ops = {s.node: "judge" for s in cost.stages} | {node.name: node.op for node in graph.nodes}
    ways = {node.name: f"sync {transport_of(plan.host, plan.meshes, node)}" for node in graph.syncs}
    stages = [{"node": s.node, "op": ops[s.node], "service": s.service,
               "lane": cost.lane(s.service), "tokens": s.tokens, "seconds": s.seconds,
               "kind": device_kind(plan.host.gpu, s.device),
               "key": ways.get(s.node, ops[s.node])} for s in cost.stages]  # fmt: skip
    name = run_name(lowered.job.name, lowered.job.profile)
    found = {"name": name, "overlapped": cost.overlapped, "stages": stages}
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
    took = statistics.median(row["step_s"] for row in data.rows[FIRST:])
    return compare(estimate, figures(estimate, data), took=took, run=folder.resolve().name)


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
    estimate: Mapping[str, Any], seen: Mapping[str, tuple[float, float]], *, took: float, run: str
) -> Measured:
    """Compute times and lengths from the (seconds, tokens) of nodes; then scale all times by a
    factor, so that the estimate of the run equals its measured step time."""
    stages = [s for s in estimate["stages"] if s["node"] in seen]
    lengths = {s["node"]: seen[s["node"]][1] / s["tokens"] for s in stages if s["tokens"]}
    sums: dict[tuple[str, str], list[float]] = {}
    for s in stages:
        whole = sums.setdefault((s["kind"], s["key"]), [0.0, 0.0])
        whole[0] += seen[s["node"]][0]
        whole[1] += s["seconds"] * lengths.get(s["node"], 1.0)
    times = {key: measured / estimated for key, (measured, estimated) in sums.items()}

    def step(factors: Mapping[tuple[str, str], float], parts: Mapping[str, float]) -> float:
        lanes: dict[str, float] = {}
        for s in estimate["stages"]:
            seconds = s["seconds"] * factors.get((s["kind"], s["key"]), 1.0)
            lanes[s["lane"]] = lanes.get(s["lane"], 0.0) + seconds * parts.get(s["node"], 1.0)
        return max(lanes.values()) if estimate["overlapped"] else sum(lanes.values())

    rest = took / step(times, lengths)
    times = {key: float(f"{value * rest:.4g}") for key, value in sorted(times.items())}
    devices: dict[str, Any] = {}
    for (kind, key), value in times.items():
        new = {"run": run, "date": f"{datetime.now(UTC):%Y-%m-%d}", "times": {}}
        devices.setdefault(kind, new)["times"][key] = value
    shares = {node: float(f"{part:.4g}") for node, part in lengths.items()}
    known = {"devices": devices, "lengths": {estimate["name"]: shares}}
    return Measured(known, step({}, {}), took, step(times, lengths))
