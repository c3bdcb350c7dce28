"""P221 idle-ranks: a step has fewer sequences than the trainer has ranks for them.

    service trainer : titan(policy) { procs = 8 }
    prompt  = sums.draw(1)
    rollout = generator.sample(prompt, n = 4)            # fires: 4 sequences for 8 ranks
    rollout = generator.sample(prompt, n = 8)            # silent

The others compute on nothing and wait (SkyRL #229). With `minibatches` an update has a part of the
sequences only.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.plan.cost import data_ranks, replayed

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.planned is None:
        return
    graph, plan = view.planned
    sequences = sum(graph.drawn(node) * int(node.settings["n"]) for node in graph.of("sample"))
    sequences += sum(2 * graph.drawn(node) for node in graph.of("pairs"))
    sequences += sum(replayed(plan.request, graph, node)[0] for node in graph.of("recall"))
    ranks = data_ranks(plan.mesh(graph.trainer))
    for step in view.steps:
        parts = int(step.settings["minibatches"].value)
        if graph.of("batches") or sequences == 0 or sequences // parts >= ranks:
            continue
        yield finding(
            f"an update has {sequences // parts} sequences for {ranks} ranks of `{graph.trainer}`",
            view.program.services[graph.trainer].name_span,
            related=(Label(text="the step", span=step.span),),
            help="draw more prompts, or take fewer `procs`",
        )
