"""A313 deadline-too-short: a deadline ends before the work that it waits for can be done.

    schedule async { steps = 100, max_policy_age = 1, starve_timeout = 1s }          # fires
    sync trainer -> generator { timeout = 1ms }                                      # fires

The first answers of a step take as long as the plan says for sampling; a run with less patience
ends with exit code 6 though nothing is wrong (verl #7155, open-instruct #691). It fires below a
quarter of the estimate, which counts all answers at their longest.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.plan.cost import time_text

finding = rule(__doc__, "W")
PART = 0.25


def check(view: View) -> Findings:
    if view.planned is None:
        return
    graph, plan = view.planned
    seconds = {stage.node: stage.seconds for stage in plan.cost.stages}
    schedule = view.program.schedule
    sampling = max((seconds.get(node.name, 0.0) for node in graph.of("sample")), default=0.0)
    if schedule is not None:
        patience = schedule.settings["starve_timeout"]
        if patience.value is not None and patience.value < PART * sampling:
            yield finding(
                f"sampling takes about {time_text(sampling)}, and the run ends after "
                f"{time_text(patience.value)} without a group",
                place(patience, schedule),
                help=f"`starve_timeout = {max(1, round(sampling / 6))}min`",
            )
    for step in (s for s in view.program.flow if s.op == "sync"):
        node = next((n for n in graph.syncs if n.span == step.span), None)
        timeout = step.settings["timeout"]
        takes = seconds.get(node.name, 0.0) * (plan.schedule.every or 1) if node else 0.0
        if timeout.value < PART * takes:
            yield finding(
                f"a sync takes about {time_text(takes)} and is given {time_text(timeout.value)}",
                timeout.origin.span or step.span,
                help="leave `timeout` out: it is 5 minutes then",
            )
