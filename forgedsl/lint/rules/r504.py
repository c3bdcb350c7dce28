"""R504 truncation-unset: the rubric does not state the score of a truncated completion.

A completion that reaches `max_tokens` is cut off: it usually has no answer, and sometimes a lucky
one. Scored like any other, it teaches the policy to ramble. See TRL #3248.

    rubric score { score = correct }                           # fires
    rubric score { score = correct, on_truncated = 0.0 }       # silent

`on_truncated = 0.0` gives it a fixed score. To score it like any other, write `on_truncated = none`
and a suppression with a reason.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    program = view.program
    used = {step.receiver for step in program.flow if Role.SCORES in step.roles}
    for rubric in program.rubrics.values():
        if rubric.name in used and rubric.settings["on_truncated"].value is None:
            yield finding(
                f"rubric `{rubric.name}` does not say what a truncated completion scores",
                rubric.name_span,
                help="`on_truncated = 0.0`",
            )
