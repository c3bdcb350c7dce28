"""Summary of a job, in a few lines for people."""

from __future__ import annotations

from forgedsl.diagnostics import counted
from forgedsl.drawing.picture import title_text
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Constructor, Program, model_of
from forgedsl.plan.plan import Plan
from forgedsl.types.flow import Role


def summary_lines(program: Program, graph: Graph, plan: Plan) -> tuple[str, ...]:
    """Title, rates and length, meshes."""
    model = program.models[model_of(program.services[graph.trainer])]
    source = model.settings["source"].value
    losses = " + ".join(loss for loss, _ in graph.step.terms)
    title = f"{title_text(program)}: {model.name} = {_source(source)}, loss {losses}"
    meshes = "; ".join(f"{mesh.service} {mesh.text} on {mesh.device}" for mesh in plan.meshes)
    return (title, _rates(graph, plan), meshes)


def _source(source: Constructor) -> str:
    arguments = ", ".join(str(v) for v in source.args.values() if v is not None)
    return f"{source.name}({arguments})"


def _rates(graph: Graph, plan: Plan) -> str:
    schedule = plan.schedule
    parts = [schedule.length, schedule.mode]
    for node in graph.having(Role.SAMPLES):
        prompts = counted(graph.drawn(node), "prompt")
        parts.append(f"{prompts} x {node.settings['n']} completions a step")
    epochs, many = graph.updates
    if epochs * many > 1:
        parts.append(f"{epochs} x {many} updates a step")
    if schedule.every is not None:
        parts.append(f"policy age <= {schedule.staleness.age_bound}")
    return ", ".join(parts)
