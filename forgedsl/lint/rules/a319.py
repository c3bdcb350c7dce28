"""A319 proof-off: the file turns a proof off, so the run does not check it.

    proofs { off { gap = "top_k makes the distributions differ" } }     # fires
    proofs { }                                                          # silent: all are on

A run checks itself for faults that give no error: weights that never reach the sampler, a loss that
reads tokens that do not count, a kernel that is not its expression. Each check can be turned off
with a reason. The report and the model card repeat the reason, so that a reader knows what was not
checked. This is information, not a mistake.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "I")


def check(view: View) -> Findings:
    declared = view.program.singletons["proofs"]
    for name, setting in declared.settings.items():
        if setting.value is not None:
            yield finding(
                f"the proof `{name.removeprefix('off.')}` is off: {setting.value}",
                place(setting, declared),
            )
