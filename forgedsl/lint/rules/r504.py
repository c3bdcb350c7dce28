"""R504 truncation-unset: the rubric does not say what a cut completion is worth.

A completion that hits `max_tokens` has no end, often no answer, and sometimes a lucky one. Scored
like any other it teaches the policy to ramble.

    rubric score { score = correct }                           # fires

`on_truncated = 0.0` gives it a fixed score; `on_truncated = none` with a reason as a suppression
keeps the rubric's.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.lint.view import View

CODE = "R504"
NAME = "truncation-unset"
LEVEL = "W"


def check(view: View) -> Iterator[Diagnostic]:
    program = view.program
    used = {step.receiver for step in program.flow if step.op == "score"}
    for rubric in program.rubrics.values():
        if rubric.name in used and rubric.settings["on_truncated"].value is None:
            yield Diagnostic(
                code=CODE,
                name=NAME,
                severity=Severity.WARNING,
                message=f"rubric `{rubric.name}` does not say what a truncated completion scores",
                span=rubric.name_span,
                help="`on_truncated = 0.0`",
            )
