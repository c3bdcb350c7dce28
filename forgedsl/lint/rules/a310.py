"""A310 sync-too-rare: the run ends before its weights ever reach the sampler.

All completions are then sampled by the initial weights: the ratio drifts away from 1, the clip
removes the gradient, and the reward stops improving. See TRL #3679.

    sync trainer -> generator { every = 1000 }
    schedule sync { steps = 500 }                        # fires
    sync trainer -> generator { every = 1 }              # silent

Sync after every step, or every few steps. The rule ignores profiles with few steps.
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
