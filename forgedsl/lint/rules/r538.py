"""R538 failures-hidden: if every call of a reward fails, the run goes on with the score for errors.

    reward good = grading.verified { effects = [net], max_failed = 1.0, on_error = 0.0 }   # fires
    reward good = grading.verified { effects = [net], on_error = 0.0 }                     # silent
    reward good = grading.verified { effects = [net], max_failed = 1.0, on_error = drop }  # silent

If the server is down, every answer scores the same, and the run goes on for hours with a loss of 0
(open-r1 #134, TRL #3452). `max_failed` ends a run whose reward has failed for most of the last
calls; leave it at its default, or drop what could not be scored. The rule looks at rewards that
use the network or run programs, and at judges.
"""

from forgedsl.hir.judges import judge_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View
from forgedsl.settings import AUTO
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    used = {step.receiver for step in view.program.flow if Role.SCORES in step.roles}
    rubrics = [r for name, r in view.program.rubrics.items() if name in used]
    for reward in view.program.rewards.values():
        settings = reward.settings
        outside = {"net", "exec"} & {*settings["effects"].value} or judge_of(reward) is not None
        if not outside or settings["max_failed"].value < 1.0 or settings["monitor"].value:
            continue
        scores = [settings["on_error"].value]
        if scores == [AUTO]:
            scores = [rubric.settings["on_error"].value for rubric in rubrics]
        paid = [score for score in scores if isinstance(score, int | float)]
        if paid:
            yield finding(
                f"if every call of `{reward.name}` fails, each answer scores {paid[0]:g}, and the "
                "run goes on",
                place_of(reward, view, "max_failed"),
                help="leave `max_failed` at 0.25, or write `on_error = drop`",
            )
