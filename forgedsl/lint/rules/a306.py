"""A306 starvation: a filter may drop every group, and no timeout ends the wait.

Dynamic sampling keeps only groups with mixed scores. When the policy solves all prompts, or none,
no group passes, the trainer waits, and the run hangs silently. In DAPO #22 ten batches were sampled
and none was filled.

    kept = rollout.keep(mixed(score))
    schedule async { steps = 100, max_policy_age = 1 }         # fires: no starve_timeout
    schedule async { steps = 100, max_policy_age = 1, starve_timeout = 30min }      # silent

Set `starve_timeout`: the run then ends with exit code 6 and says why.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    program = view.program
    schedule = program.schedule
    keep = next((step for step in program.flow if Role.DROPS in step.roles), None)
    if schedule is None or keep is None or schedule.settings["starve_timeout"].value is not None:
        return
    yield finding(
        "the filter may drop every group, and the trainer would wait for ever",
        keep.span,
        related=(Label(text="has no starve_timeout", span=schedule.name_span),),
        help="`starve_timeout = 30min` in the schedule",
    )
