"""A315 no-checkpoint: a run of hours saves no checkpoint before its end.

    checkpoint { every = none }
    schedule async { steps = 5000, max_policy_age = 1 }      # fires: an interruption costs it all
    checkpoint { every = 100, keep = 3 }                     # silent

An interruption then loses all the work. Save a checkpoint every so many steps. The rule fires for
runs of an hour and more by the plan's estimate (NeMo-RL #444).
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.plan.cost import time_text

finding = rule(__doc__, "W")
LONG = 3600.0


def check(view: View) -> Findings:
    checkpoint = view.program.singletons["checkpoint"]
    every = checkpoint.settings["every"]
    if view.planned is None:
        return
    plan = view.planned[1]
    steps, seconds = plan.schedule.steps or 0, plan.cost.step_seconds
    kept = every.value if isinstance(every.value, float) else (every.value or steps) * seconds
    if steps * seconds >= LONG and kept >= steps * seconds:
        yield finding(
            f"the run takes about {time_text(steps * seconds)}, and no checkpoint is saved before "
            "it ends",
            place(every, checkpoint),
            help="`checkpoint { every = 10min }`",
        )
