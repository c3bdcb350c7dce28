"""A311 warmup-too-long: the run ends before the learning rate has warmed up.

    optimizer { lr = 1e-6, warmup = 1000 }
    schedule sync { steps = 500 }                        # fires: half of 1e-6 at the end
    optimizer { lr = 1e-6, warmup = 50 }                 # silent

The learning rate never reaches `lr`, so the run learns more slowly than intended. `warmup` counts
steps; in prime-rl #968 it was longer than the run. Lower `warmup`. The rule ignores profiles with
few steps.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W", everywhere=True)


def check(view: View) -> Findings:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    if schedule is None or not isinstance(steps, int):
        return
    for name in dict.fromkeys(step.receiver for step in view.steps):
        trainer = view.program.services[name]
        warmup = trainer.settings.get("optimizer.warmup")
        if warmup is not None and warmup.value >= steps > 1:
            yield finding(
                f"the warm-up of {warmup.value} steps is as long as the run, or longer",
                place(warmup, trainer),
                help="`warmup = 10`: it counts steps",
            )
