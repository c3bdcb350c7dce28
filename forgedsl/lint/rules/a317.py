"""A317 restarts-from-nothing: a run that may restart writes no checkpoints.

    schedule sync { steps = 500, restarts = 5 }
    checkpoint { every = none }                          # fires
    checkpoint { every = 25 }                            # silent

A restart goes on from the last checkpoint. Without one it begins at step 0, so a run whose host is
lost in its last hour does everything again (ace #347). Set `every`, or leave `restarts` out.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    checkpoint, schedule = view.program.singletons["checkpoint"], view.program.schedule
    every = checkpoint.settings["every"]
    if schedule is None or every.value is not None:
        return
    restarts = schedule.settings["restarts"]
    if restarts.value > 0:
        yield finding(
            "the run may restart, and writes no checkpoint to restart from",
            place(every, checkpoint),
            related=(Label(text="may restart", span=place(restarts, schedule)),),
            help="`checkpoint { every = 50 }`",
        )
