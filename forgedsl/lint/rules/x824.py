"""X824 absent-column: a Python reward asks for a column that the rows do not have.

    def correct(completions, **kwargs):
        truths = kwargs.get("solution") or [None]        # fires: gsm8k has question and answer
        truths = kwargs["answer"]                        # silent

`get` gives None or a default, and the reward is 0 for every answer (open-r1 #385). Read a column
that is there. The rule knows the columns of GSM8K, and those of the first row of a local file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
KNOWN = {"openai/gsm8k": ("question", "answer")}
OTHERS = ("target", "completions", "prompts", "completion_ids", "trainer_state")


def check(view: View) -> Findings:
    for found in python_rewards(view):
        if not found.function.any_name:
            continue
        columns = _columns(view)
        for node, name in _asked(found) if columns else ():
            if name not in (*columns, *OTHERS):
                listed = ", ".join(f"`{column}`" for column in columns)
                yield finding(
                    f"reward `{found.reward.name}` asks for a column `{name}`, which the rows lack",
                    place_of(found.reward, view),
                    related=(Label(text="here", span=found.at(node)),),
                    help=f"their columns are {listed}",
                )
                break


def _columns(view: View) -> tuple[str, ...]:
    """Return the columns of the rows that the flow draws; nothing if they are unknown."""
    from forgedsl.lint.prompts import drawn_from, first_row

    found: dict[str, None] = {}
    for dataset in drawn_from(view):
        source = dataset.settings["source"].value
        row = first_row(view, dataset)
        known = KNOWN.get(str(source.args.get("id"))) if getattr(source, "args", None) else None
        names = known or (tuple(row) if isinstance(row, dict) else ())
        if not names:
            return ()
        found |= dict.fromkeys(names)
    return tuple(found)


def _asked(found: PythonReward) -> list[tuple[python.AST, str]]:
    """Return the columns that a function takes from its `**kwargs`, with their places."""
    import ast as python

    kwarg = found.definition.args.kwarg
    given = kwarg.arg if kwarg is not None else ""
    asked: list[tuple[python.AST, str]] = []
    for node in python.walk(found.definition):
        match node:
            case (
                python.Call(
                    func=python.Attribute(attr="get", value=python.Name(id=owner)),
                    args=[python.Constant(value=str(name)), *_],
                )
                | python.Subscript(
                    value=python.Name(id=owner), slice=python.Constant(value=str(name))
                )
            ) if owner == given:
                asked.append((node, name))
    return asked
