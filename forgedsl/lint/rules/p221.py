"""P221 idle-ranks: a step has fewer sequences than the trainer has data-parallel ranks.

    service trainer : titan(policy) { procs = 8 }
    prompt  = sums.draw(1)
    rollout = generator.sample(prompt, n = 4)            # fires: 4 sequences for 8 ranks
    rollout = generator.sample(prompt, n = 8)            # silent

The other ranks compute on padding and wait (SkyRL #229). Draw or sample more, or use fewer ranks.
With `minibatches`, an update has only part of the sequences.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.operations.registry import operation
from forgedsl.plan.sizes import PlannedSizes, data_ranks
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.planned is None:
        return
    graph, plan = view.planned
    sizes = PlannedSizes(plan.request, graph)
    sequences = sum(operation(node.op).sequences(node, sizes) for node in graph.nodes)
    ranks = data_ranks(plan.mesh(graph.trainer))
    for step in view.steps:
        parts = int(step.settings["minibatches"].value)
        if graph.having(Role.SUPERVISED) or sequences == 0 or sequences // parts >= ranks:
            continue
        yield finding(
            f"an update has {sequences // parts} sequences for {ranks} ranks of `{graph.trainer}`",
            view.program.services[graph.trainer].name_span,
            related=(Label(text="the step", span=step.span),),
            help="draw more prompts, or take fewer `procs`",
        )
