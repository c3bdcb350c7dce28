"""The graph as JSON: nodes, edges, meshes and schedule, for other programs.

`format_version` follows the usual promise: fields are added in a minor version, renamed or removed
only in a major one.
"""

from __future__ import annotations

import json
from typing import Any

from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import Program
from forgedsl.plan.plan import Plan
from forgedsl.sizes.meshes import MeshPlan

FORMAT_VERSION = "1.0"


def render_json(program: Program, graph: Graph, plan: Plan) -> str:
    """JSON text, ending in a newline."""
    staleness = plan.schedule.staleness
    document = {
        "format_version": FORMAT_VERSION,
        "name": program.name,
        "profile": program.profile,
        "flow": graph.flow,
        "nodes": [_node(node, plan) for node in graph.nodes],
        "edges": [
            {
                "from": edge.source,
                "to": edge.target,
                "kind": edge.kind.value,
                "label": edge.label,
                "type": edge.type,
            }
            for edge in graph.edges
        ],
        "meshes": [_mesh(mesh) for mesh in plan.meshes],
        "schedule": {
            "mode": plan.schedule.mode,
            "prompts": staleness.prompts,
            "credits": staleness.credits,
            "window": staleness.window,
            "every": plan.schedule.every,
            "age_bound": staleness.age_bound,
            "max_policy_age": plan.schedule.max_policy_age,
            "formula": staleness.formula if plan.schedule.every is not None else None,
        },
        "removed": [
            {
                "reason": part.reason,
                "fields": list(part.fields),
                "nodes": list(part.nodes),
                "services": list(part.services),
            }
            for part in graph.removed
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _node(node: Node, plan: Plan) -> dict[str, Any]:
    return {
        "id": node.id,
        "name": node.name,
        "op": node.op,
        "target": node.target,
        "level": node.level.value,
        "stream": node.stream.value,
        "inputs": [{"argument": i.argument, "edge": i.text} for i in node.inputs],
        "slots": plan.slots[node.name],
        "capacity": plan.capacities.get(node.name),
    }


def _mesh(mesh: MeshPlan) -> dict[str, Any]:
    return {
        "service": mesh.service,
        "name": mesh.name,
        "kind": mesh.kind,
        "device": mesh.device,
        "hosts": mesh.hosts,
        "procs": mesh.procs,
        "gpus": mesh.gpus,
        "replicas": mesh.replicas,
        "parallel": dict(mesh.degrees),
        "places": [
            {"replica": p.replica, "host": p.host, "gpus": list(p.gpus)} for p in mesh.places
        ],
    }
