"""Details of nodes, edges and meshes in a drawing: types, shapes, rates, memory.

Node | edge | MeshPlan + Graph + Plan -> ((field, value), ...)
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.graph import EdgeKind, Graph, Node
from forgedsl.operations.registry import operation
from forgedsl.plan.cost import time_text
from forgedsl.plan.plan import Plan
from forgedsl.plan.sizes import PlannedSizes
from forgedsl.sizes.memory import GIB
from forgedsl.sizes.meshes import MeshPlan

Details = tuple[tuple[str, str], ...]


def box_details(node: Node, graph: Graph, plan: Plan) -> Details:
    """Return the details of a node."""
    return tuple(_box(node, graph, plan))


def _box(node: Node, graph: Graph, plan: Plan) -> Iterator[tuple[str, str]]:
    yield "produces", node.edge_type or operation(node.op).produces
    shape = operation(node.op).size_text(node, PlannedSizes(plan.request, graph))
    if shape:
        yield "a step", shape
    for i in node.inputs:
        yield f"reads {i.argument}" if i.argument != i.edge else "reads", i.text
    plural = "es" if node.level.value == "batch" else "s"
    slots = plan.slots[node.name]
    unit = "batch" if node.level.value == "batch" else "group"
    yield "works on", f"{slots} {unit}{plural if slots > 1 else ''} at once"
    capacity = plan.capacities.get(node.name)
    if capacity is not None:
        yield "queue", f"holds at most {capacity}"
    for stage in plan.cost.stages:
        if stage.node == node.name:
            yield "cost", f"{stage.flops:.1e} FLOP, about {time_text(stage.seconds)} a step"
    yield "id", node.id


def arrow_details(source: str, target: str, kind: EdgeKind, graph: Graph, plan: Plan) -> Details:
    """Return the details of an edge between two node ids."""
    names = {node.id: node.name for node in graph.nodes}
    ends = f"{names[source]} -> {names[target]}"
    age = plan.schedule.staleness
    if kind is EdgeKind.WEIGHTS:
        return (("weights", ends), ("policy age", f"at most {age.age_bound}: {age.formula}"))
    if kind is EdgeKind.REPLAY:
        node = graph.node(names[target])
        more = operation(node.op).edge_details(node, plan.request.program)
        return (("replay", ends), *more)
    edge = next(e for e in graph.edges if (e.source, e.target) == (source, target))
    found = [("edge", ends), ("type", edge.type)]
    found.append(("queue", f"holds at most {plan.capacities[names[source]]}"))
    drawn = graph.node(graph.node(names[source]).root or names[source])
    if age_text := operation(drawn.op).age_text(drawn, plan.request.program):
        found.append(("policy age", age_text))
    elif graph.node(names[source]).samplers and plan.schedule.every is not None:
        found.append(("policy age", f"0 to {age.age_bound} steps"))
    return tuple(found)


def group_details(mesh: MeshPlan, plan: Plan) -> Details:
    """Return the details of a mesh."""
    found = [("service", f"{mesh.kind} {mesh.service}"), ("mesh", mesh.text)]
    degrees = ", ".join(f"{name} {d}" for name, d in mesh.split.items())
    if degrees:
        found.append(("parallel", degrees))
    hosts = sorted({place.host for place in mesh.places})
    found.append(("hosts", ", ".join(map(str, hosts)) if len(hosts) < 9 else f"{len(hosts)} hosts"))
    if served := [name for name, on in plan.cost.engines.items() if on == mesh.service]:
        found.append(("also serves", ", ".join(served)))
    rank = plan.memory.rank(mesh.service)
    if rank is not None:
        found += [(p.name, f"{p.bytes / GIB:.1f} GiB a process") for p in rank.phases]
    return tuple(found)
