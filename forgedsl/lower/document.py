"""plan.json: a plan as a document, with the job that it runs.

    Lowered -> dict (format_version, content_hash, hosts, memory, ..., job) -> text -> Job

`forgec run plan.json` runs exactly the job inside. The hash covers the whole document, so an edited
plan is refused. Minor versions add fields; readers refuse other major versions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from forgedsl.ir.graph import Graph
from forgedsl.lower.build import Lowered
from forgedsl.lower.job import Job
from forgedsl.plan.liveness import credit_loops, exits
from forgedsl.plan.plan import Plan

FORMAT_VERSION = "1.0"
KIND = "forgedsl.plan"
NOT_HASHED = frozenset({"content_hash", "diagnostics", "changes", "alternatives"})
"""the hash itself, and fields that `forgec plan --format json` adds"""


class DocumentError(ValueError):
    """The text is no plan that can be run; the message says why."""


def plan_document(lowered: Lowered) -> dict[str, Any]:
    """Make the document of a lowered program, with its hash."""
    plan, graph = lowered.plan, lowered.graph
    body = {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "host": asdict(plan.host),
        "chosen": dict(plan.chosen),
        "meshes": [_mesh(mesh) for mesh in plan.meshes],
        "schedule": _schedule(plan),
        "queues": {n.name: {"capacity": plan.capacities.get(n.name), "slots": plan.slots[n.name]}
                   for n in graph.nodes},
        "memory": _memory(plan),
        "cost": _cost(plan),
        "liveness": _liveness(graph, plan),
        "job": lowered.job.model_dump(mode="json"),
    }  # fmt: skip
    return {**body, "content_hash": digest(body)}


def document_text(document: dict[str, Any]) -> str:
    """Format a document as JSON text, ending in a newline."""
    return json.dumps(document, indent=1) + "\n"


def digest(document: dict[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a document, without its hash and the fields in
    NOT_HASHED."""
    body = {key: value for key, value in document.items() if key not in NOT_HASHED}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_document(value: Any) -> bool:
    """True if parsed JSON is a plan rather than a bare job."""
    return isinstance(value, dict) and value.get("kind") == KIND


def job_of(document: dict[str, Any]) -> Job:
    """Return the job of a plan. Raises DocumentError if the format is unknown or the plan was
    edited."""
    version = str(document.get("format_version", ""))
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise DocumentError(f"it has format {version or 'none'}, but this forgec reads 1.x")
    if digest(document) != document.get("content_hash"):
        raise DocumentError("it was changed after it was planned: its content hash does not match")
    return Job.model_validate(document["job"])


def _mesh(mesh: Any) -> dict[str, Any]:
    return {**asdict(mesh), "degrees": dict(mesh.degrees)}


def _schedule(plan: Plan) -> dict[str, Any]:
    schedule, staleness = plan.schedule, plan.schedule.staleness
    return {
        "mode": schedule.mode,
        "steps": schedule.steps,
        "epochs": schedule.epochs,
        "prompts": staleness.prompts,
        "lag": staleness.lag,
        "credits": staleness.credits,
        "window": staleness.window,
        "every": schedule.every,
        "age_bound": staleness.age_bound,
        "age_formula": staleness.formula if schedule.every is not None else None,
        "max_policy_age": schedule.max_policy_age,
        "starve_timeout": schedule.starve_timeout,
    }


def _memory(plan: Plan) -> dict[str, Any]:
    memory = plan.memory
    return {
        "ranks": {
            rank.service: {
                "ranks": rank.ranks,
                "gpu_fraction": rank.fraction,
                "largest_rows": memory.fitting_rows(rank.service),
                "phases": {
                    phase.name: {
                        "bytes": phase.bytes,
                        "items": [asdict(item) for item in phase.items],
                    }
                    for phase in rank.phases
                },
            }
            for rank in memory.ranks
        },
        "stores": [
            {
                "name": store.name,
                "count": store.count,
                "capacity": store.capacity,
                "bytes": store.bytes,
                "phase": store.phase,
                "parts": dict(store.parts),
            }
            for store in memory.stores
        ],
        "unknown": list(memory.unknown),
    }


def _cost(plan: Plan) -> dict[str, Any]:
    cost = plan.cost
    return {
        "stages": [
            {k: v for k, v in asdict(stage).items() if k != "roles"} for stage in cost.stages
        ],
        "overlapped": cost.overlapped,
        "step_seconds": cost.step_seconds,
        "bottleneck": cost.bottleneck.node if cost.bottleneck is not None else None,
        "flops": cost.flops,
        "dead_groups": [
            {
                "node": group.node,
                "size": group.size,
                "filtered": group.filtered,
                "probability": {str(p): group.probability(p) for p in (0.05, 0.2, 0.5, 0.8, 0.95)},
            }
            for group in cost.dead
        ],
        "unknown": list(cost.unknown),
    }


def _liveness(graph: Graph, plan: Plan) -> dict[str, Any]:
    return {
        "cycles": [
            {
                "through": list(loop),
                "credits": plan.schedule.staleness.credits,
                "needed": plan.schedule.staleness.prompts,
            }
            for loop in credit_loops(graph, plan.schedule)
        ],
        "failures": [asdict(edge) for edge in exits(graph, plan.schedule)],
    }
