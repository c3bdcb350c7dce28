"""R506 no-timeout: a reward that uses the network or runs programs has no timeout.

A request or a program can hang, and with it the rollout, its group, and in the end the trainer. The
default of 30 s is a guess; set the `timeout` that your call needs. In verl #6673 one slow sample
stopped all GPUs after 5 to 8 steps.

    reward judge(r: Rollout) -> f32 = remote.score { effects = [net] }                   # fires
    reward judge(r: Rollout) -> f32 = remote.score { effects = [net], timeout = 10s }    # silent
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View
from forgedsl.source import Span

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        effects, timeout = reward.settings["effects"], reward.settings["timeout"]
        outside = [name for name in effects.value if name in ("net", "exec")]
        if not outside or timeout.origin.layer != "default":
            continue
        fix = None
        if (span := effects.origin.span) is not None:
            end = Span(span.file, span.end, span.end)
            edits = (Edit(text=", timeout = 30s", span=end),)
            fix = Fix(message="state the default, 30s", edits=edits)
        yield finding(
            f"reward `{reward.name}` has effect {outside[0]} and no timeout",
            place_of(reward, view, "effects"),
            help="`timeout = 30s`",
            fix=fix,
        )
