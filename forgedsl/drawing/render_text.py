"""The graph as text: arrows in columns, the weight sync apart, nodes, meshes, schedule.

    prompt --------> rollout --> score --> adv --> batch --> step
                     rollout --> ref_lp ---------> batch
    prompt.target ------------> score

A column is a rank of the graph. Each line is a chain of new edges; every edge is shown exactly
once.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.drawing.layout import ranks
from forgedsl.drawing.picture import call_text, note_text, sync_text, title_text
from forgedsl.ir.graph import EdgeKind, Graph, Node
from forgedsl.ir.program import Constructor, Program, Ref
from forgedsl.operations.base import Role
from forgedsl.plan.host import host_text
from forgedsl.plan.plan import Plan

Cell = tuple[int, str]  # column and text


def render_text(program: Program, graph: Graph, plan: Plan, *, host: bool = True) -> str:
    """Return the whole page, ending in a newline. `host` adds the hosts of the plan."""
    sections = [
        ("dataflow", topology_lines(graph)),
        (_cycles(graph), _sync_lines(graph, plan)),
        ("nodes", _node_lines(graph, plan)),
        ("meshes", _mesh_lines(plan)),
        ("planned for", [host_text(plan.host)] if host else []),
        ("schedule", plan.schedule.text.splitlines()),
        ("evals", _eval_lines(program)),
        ("removed", [_removed_line(part.reason, part.nodes, part.services)
                     for part in graph.removed]),
    ]  # fmt: skip
    blocks = [title_text(program)]
    for title, lines in sections:
        if lines:
            blocks.append("\n".join([title, *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def topology_lines(graph: Graph) -> list[str]:
    """Draw the arrows in columns."""
    rank_by_id = ranks(graph)
    chains = [_cells(chain, rank_by_id) for chain in _chains(graph)]
    columns = 1 + max((column for chain in chains for column, _ in chain), default=0)
    widths = [0] * columns
    for chain in chains:
        for column, text in chain:
            widths[column] = max(widths[column], len(text))
    starts = [sum(widths[:column]) + 5 * column for column in range(columns)]
    return [_chain_line(chain, starts) for chain in chains]


def _chain_line(chain: Sequence[Cell], starts: Sequence[int]) -> str:
    line = ""
    for column, text in chain:
        gap = starts[column] - len(line)
        line += f" {'-' * (gap - 3)}> {text}" if line else " " * gap + text
    return line


def _cells(chain: Sequence[tuple[Node, str]], rank_by_id: dict[str, int]) -> list[Cell]:
    return [(rank_by_id[node.id], text) for node, text in chain]


def _chains(graph: Graph) -> list[list[tuple[Node, str]]]:
    """Return chains of (node, text) that cover every data edge once, the longest path first."""
    node_by_id = {node.id: node for node in graph.nodes}
    depth = _depths(graph)
    left = [edge for edge in graph.edges if edge.kind is EdgeKind.DATA]
    shown: set[str] = set()
    chains = []
    while left:
        start = next((e for e in left if e.source in shown), left[0])
        starts = [edge for edge in left if edge.source == start.source]
        edge = max(starts, key=lambda e: depth[e.target])
        chain = [(node_by_id[edge.source], edge.label)]
        while True:
            left.remove(edge)
            shown.add(edge.source)
            following = [e for e in left if e.source == edge.target and e.attribute is None]
            is_new = edge.target not in shown
            shown.add(edge.target)
            if not following or not is_new:
                chain.append((node_by_id[edge.target], node_by_id[edge.target].name))
                break
            edge = max(following, key=lambda e: depth[e.target])
            chain.append((node_by_id[edge.source], edge.label))
        chains.append(chain)
    return chains


def _depths(graph: Graph) -> dict[str, int]:
    """Length of the longest path from a node to a sink."""
    depth = dict.fromkeys((node.id for node in graph.nodes), 0)
    for node in reversed(graph.nodes):
        ends = [e.target for e in graph.edges if e.source == node.id and e.kind is EdgeKind.DATA]
        depth[node.id] = max((depth[end] + 1 for end in ends), default=0)
    return depth


def _sync_lines(graph: Graph, plan: Plan) -> list[str]:
    lines = []
    for sync in graph.syncs:
        kept = (
            ", KV caches kept"
            if sync.settings.get("on_swap") == "keep"
            else ", KV caches recomputed"
        )
        how = f"{sync_text(sync, plan)}{kept}"
        lines.append(f"{sync.target} ==> {sync.settings['target']}    {how}")
    for old in graph.having(Role.RECALLS):
        lines.append(f"{old.target} ==> {old.name}    {note_text(old, plan, graph)}")
    return lines


def _cycles(graph: Graph) -> str:
    if not graph.having(Role.RECALLS):
        return "weight sync (the only cycle)"
    return "weight sync and replay (the only cycles)" if graph.syncs else "replay (the only cycle)"


def _node_lines(graph: Graph, plan: Plan) -> list[str]:
    shown = [node for node in graph.nodes if Role.TRANSFERS not in node.roles]
    rows = [
        (
            node.name,
            call_text(node),
            node.level.value,
            f"{plan.slots[node.name]} at once",
            note_text(node, plan, graph),
        )
        for node in shown
    ]
    return table(rows)


def _mesh_lines(plan: Plan) -> list[str]:
    rows = []
    for mesh in plan.meshes:
        degrees = ", ".join(f"{name} {d}" for name, d in mesh.split.items())
        hosts = sorted({place.host for place in mesh.places})
        span = f"{hosts[0]}-{hosts[-1]}" if len(hosts) > 1 else f"{hosts[0]}" if hosts else ""
        where = f"hosts {span}" if len(hosts) > 1 else f"host {span}" if hosts else ""
        rows.append((mesh.name, mesh.device, mesh.text, degrees, where))
    rows += [(name, "", f"served by {on}", "", "") for name, on in plan.cost.engines.items()]
    lines = table(rows)
    if plan.colocate:
        lines.append(f"{', '.join(plan.colocate)} share GPUs and take turns")
    return lines


def _eval_lines(program: Program) -> list[str]:
    rows = []
    for name, decl in program.evals.items():
        dataset = decl.settings["dataset"].value
        dataset = dataset.name if isinstance(dataset, Ref) else dataset
        split = decl.settings["split"].value
        score = decl.settings["score"].value or decl.settings["loss"].value
        score = score.name if isinstance(score, Ref) else score
        every = decl.settings["every"].value
        own = decl.settings["source"].value
        where = f"{dataset}[{split}]" if split else str(dataset)
        if isinstance(own, Constructor):
            where = f"{own.name}({own.args.get('path') or own.args.get('id')})"
        rows.append((name, where, f"every {every} steps", str(score)))
    return table(rows)


def _removed_line(reason: str, nodes: Sequence[str], services: Sequence[str]) -> str:
    parts = [*nodes, *(f"service {name}" for name in services)]
    return f"{', '.join(parts)}: {reason}" if parts else reason


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with aligned columns, without trailing blanks."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
