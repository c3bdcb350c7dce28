"""X869 parameter-unfilled: a parameter of a Python reward has a name that nothing fills.

    def score(response, taget): ...                  # fires: `target` is meant
    def score(response, target): ...                 # silent
    def score(response, gold): ...                   # fires, if no row of the local file has `gold`

Parameters are filled by name: `prompt`, `response`, `target`, `rollout`, `row`; any other name is a
column of the data. A row without the column is left out, so that no row is left, and the run does
not start. Rename the parameter, or give it a default. The rule reads some rows of local files. Of
other data it knows only that a name differs from one of these by a single letter; it is a warning
then.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Label, Severity
from forgedsl.hir.pycalls import SOURCES, Inputs, inputs_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from, rows_of
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View
from forgedsl.mistakes.suggest import did_you_mean, distance, nearest
from forgedsl.records import replace

finding = rule(__doc__, "D")
SHORTEST = 5
"""letters of a name that is known by a single wrong one"""
SHOWN = 8


def check(view: View) -> Findings:
    rewards = python_rewards(view)
    columns = _columns(view) if rewards else frozenset()
    for found in rewards:
        for name, help_ in _unfilled(found, columns):
            made = finding(
                f"nothing fills the parameter `{name}` of reward `{found.reward.name}`: "
                f"{'no row has such a column' if columns else 'it is taken for a column'}",
                place_of(found.reward, view),
                related=(Label(text="its parameters", span=found.definition_span),),
                help=help_,
            )
            yield made if columns else replace(made, severity=Severity.WARNING)
            break


def _unfilled(found: PythonReward, columns: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that nothing fills, with what to write instead."""
    inputs = inputs_of(found.function)
    if not isinstance(inputs, Inputs) or inputs.lists:
        return
    given = {*inputs.by_name.values(), *inputs.by_place}
    wanted = [s.removeprefix("column ") for s in given if s.startswith("column ")]
    for name in sorted(wanted):
        free = [word for word, source in SOURCES.items() if source not in given]
        near = [w for w in free if distance(name.casefold(), w) == 1 and len(w) >= SHORTEST]
        near = [word for word in near if name != f"{word}s"]
        if columns and name not in columns:
            known = sorted(columns)
            close = did_you_mean(nearest(name, [*free, *known]))
            listed = ", ".join(f"`{column}`" for column in known[:SHOWN])
            yield name, close or f"rename it, or give it a default: the columns are {listed}"
        elif near and name not in columns:
            yield name, did_you_mean(tuple(near))


def _columns(view: View) -> frozenset[str]:
    """Return the columns of the rows that are scored, if all of them are in local files."""
    files = [p for d in drawn_from(view) for p in parts(d.settings["source"].value)]
    rows = [rows_of(view, part) for part in files]
    if not all(rows):
        return frozenset()
    return frozenset(name for each in rows for row in each for name in row)
