"""P229 checkpoints-kept: a run keeps a hundred checkpoints and more.

    checkpoint { every = 1, keep = 400 }, schedule sync { steps = 500 }        # fires
    checkpoint { every = 100, keep = 3 }                                       # silent

A checkpoint has weights, moments and the state of the run: about 90 GiB for a model of 8 billion
parameters. The disk is full before the end of the run, and the run fails when it saves the next
checkpoint (Qgentic-AI #164; prime-rl #791 keeps one checkpoint by default). Keep the last few.
`forgec export` writes the weights alone from one of them.
"""

from forgedsl.ir.program import model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.numbers import billions
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
MANY = 100
BYTES = 12
"""of a parameter: weights and two moments in f32"""


def check(view: View) -> Findings:
    checkpoint, schedule = view.program.singletons["checkpoint"], view.program.schedule
    every, keep = checkpoint.settings["every"], checkpoint.settings["keep"]
    steps = schedule.settings["steps"].value if schedule is not None else None
    if every.value is None or keep.value < MANY:
        return
    kept, upto = keep.value, "up to "
    if isinstance(every.value, int) and isinstance(steps, int):
        kept, upto = min(keep.value, steps // max(1, every.value)), ""
    if kept >= MANY:
        trained = {model_of(view.program.services[step.receiver]) for step in view.steps}
        size = sum(billions(view.program.models[name]) for name in trained)
        total = f", about {kept * size * BYTES * 1e9 / 2**40:,.1f} TiB" if size else ""
        yield finding(
            f"the run keeps {upto}{kept} checkpoints{total}",
            place(keep, checkpoint),
            help="`keep = 3`, or a larger `every`",
        )
