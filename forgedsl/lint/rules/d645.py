"""D645 same-prompt: the prompt reads nothing of the row, so it is the same for all rows.

    prompt = "question"                     # fires: a text, not the column of that name
    prompt = "Question: " + row.question    # silent

All groups of a step then answer one prompt, and an eval measures one question. Read a column, as in
`row.question`. The rule ignores environments: their prompts may be equal, because the task comes
from the target.
"""

import re

from forgedsl.ir.program import Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads

finding = rule(__doc__, "W")
HOLE = r"\{[\w.]+\}"
"""placeholder that D644 reports"""


def check(view: View) -> Findings:
    program = view.program
    if any("env" in step.settings for step in program.flow):
        return
    for dataset in program.datasets.values():
        value = dataset.settings["prompt"].value
        if not isinstance(value, Deferred) or any(reads(value.expr, "row")):
            continue
        text = value.expr.value if isinstance(value.expr, ast.String) else ""
        if not re.search(HOLE, text):
            column = text if re.fullmatch(r"[A-Za-z_]\w*", text) else "COLUMN"
            yield finding(
                f"every row of `{dataset.name}` has the same prompt",
                value.expr.span,
                help=f"to read a column, write `row.{column}`",
            )
