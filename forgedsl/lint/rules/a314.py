"""A314 allocation-too-short: the scheduler's time limit ends the job before the run is done.

    launcher = slurm(partition = "gpu", time = 10min)
    schedule async { steps = 500, max_policy_age = 1 }       # fires: about 1.3 h by the plan
    launcher = slurm(partition = "gpu", time = 4h)           # silent

It fires below half of the plan's estimate, which assumes completions of maximum length. Ask for
more time, or, if a second job is to continue the run, say so:
`# forge: allow[A314] continued by --resume` (NeMo-RL #3596). It also fires if the time limit is
not longer than `checkpoint.grace`: the scheduler gives its notice that long before the limit, so
such a run would save and end as soon as it begins.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.plan.cost import check_bottleneck, time_text
from forgedsl.plan.grace import grace

finding = rule(__doc__, "W")
PART = 0.5


def check(view: View) -> Findings:
    launcher = view.program.singletons["launcher"].settings["value"].value
    time = getattr(launcher, "args", {}).get("time")
    if view.planned is None or not isinstance(time, int | float):
        return
    plan = view.planned[1]
    notice = grace(*view.planned)
    takes = (plan.schedule.steps or 0) * plan.cost.step_seconds
    if time <= notice:
        yield finding(
            f"the allocation ends after {time_text(time)}, with notice {time_text(notice)} before: "
            "the run begins to save and end as soon as it starts",
            launcher.span,
            help="ask for more `time`, or set a shorter `checkpoint.grace`: the run then trains "
            "longer, and a step that cannot end within it is abandoned",
        )
        return
    slow = check_bottleneck(view.program, plan.cost)  # A307: one mistake, one message
    if time < PART * takes and not slow:
        yield finding(
            f"the run takes about {time_text(takes)}, and the allocation ends after "
            f"{time_text(time)}",
            launcher.span,
            help="ask for more `time`, or take fewer `steps`",
        )
