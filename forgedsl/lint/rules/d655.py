"""D655 solution-as-target: an answer is compared with the whole worked solution of GSM8K.

    target = row.answer                                  # fires: "... 48/2 = 24 ... #### 72"
    target = after(row.answer, "#### ")                  # silent: "72"

`answer` of GSM8K holds the solution, and the number after `#### ` at its end. No completion
contains all of it, so `exact` and `contains` are 0 for every completion (lm-evaluation-harness
#1204). Take the number out.

The rule knows the dataset by its name, and looks at the first row of a local file.
"""

from forgedsl.ir.program import Constructor, Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_row
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
COLUMN, MARK = "answer", "\n#### "
COMPARES = ("exact", "contains")


def check(view: View) -> Findings:
    rewards = view.program.rewards.values()
    compares = [
        reward
        for reward in rewards
        if isinstance(reward.body, Constructor)
        and reward.body.name in COMPARES
        and reward.body.args.get("text") is None
    ]
    drawn = [s.receiver for s in view.program.flow if Role.PROMPTS in s.roles] if compares else []
    for name in dict.fromkeys(drawn):
        dataset = view.program.datasets[name]
        target = dataset.settings["target"]
        if _is_column(target.value) and _holds_solutions(view, dataset):
            yield finding(
                f"the target is a whole solution, which `{compares[0].name}` finds in no answer",
                place(target, dataset),
                help='take the number alone: `target = after(row.answer, "#### ")`',
            )


def _is_column(target: object) -> bool:
    """True for `row.answer`, without anything around it."""
    expr = target.expr if isinstance(target, Deferred) else None
    return isinstance(expr, ast.Path) and expr.parts == ("row", COLUMN)


def _holds_solutions(view: View, dataset: Decl) -> bool:
    source = dataset.settings["source"].value
    if isinstance(source, Constructor) and source.name == "hf":
        return str(source.args["id"]).lower().endswith("gsm8k")
    row = first_row(view, dataset)
    return isinstance(row, dict) and MARK in str(row.get(COLUMN))
