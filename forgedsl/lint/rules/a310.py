"""A310 sync-too-rare: the run ends before its weights ever reach the sampler.

All answers are then those of the model that the run began with: the ratio drifts away, the clip
holds, and the reward stands still. See TRL #3679.

    sync trainer -> generator { every = 1000 }
    schedule sync { steps = 500 }                        # fires
    sync trainer -> generator { every = 1 }              # silent

Sync after every step, or every few. A profile of few steps is no reason.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "D", everywhere=True)


def check(view: View) -> Findings:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    if schedule is None or not isinstance(steps, int):
        return
    for step in view.program.flow:
        if Role.TRANSFERS in step.roles and step.settings["every"].value >= steps > 1:
            every = step.settings["every"]
            yield finding(
                f"weights are synced every {every.value} steps, and the run ends before",
                every.origin.span or step.span,
                help="`every = 1`",
            )
