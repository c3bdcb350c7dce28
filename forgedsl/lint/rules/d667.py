"""D667 task-without-input: a column that the task needs is not in the prompt.

    chat = chat(user = row.instruction, assistant = row.output)              # fires: row.input
    chat = chat(user = paragraphs(row.instruction, row.input), ...)          # silent
    prompt = chat("Answer from the passage.", row.question)                  # fires: row.passage

An instruction such as "Count the words of the sentence" has its sentence in another column. Without
it, answers seem to come from nowhere, and the model learns to make things up. The rule reads some
rows of a local file. It fires if no part of the program reads a column `input` beside an
`instruction`, or a passage, table or list of options that the questions or the prompt name, and the
column is filled in nearly all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import rows_of, said_to
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View
from forgedsl.syntax.walk import reads

finding = rule(__doc__, "W")
MATERIAL = (
    "passage", "paragraph", "article", "document", "table", "options", "choices", "excerpt",
    "snippet", "dialogue", "transcript", "abstract", "email",
)  # fmt: skip
"""columns that a question is about; the question names them"""
FILLED, LEAST = 0.8, 2
"""share of the rows that have the column; the fewest rows that are looked at"""


def check(view: View) -> Findings:
    if view.folder is None or not view.shared.on_disk:
        return
    for dataset in view.program.datasets.values():
        prompt = dataset.settings["prompt"]
        asks = prompt if prompt.value is not None else dataset.settings["chat"]
        if not isinstance(asks.value, Deferred) or any(not k for k, _ in _reads(dataset)):
            continue
        for part in parts(dataset.settings["source"].value):
            rows = rows_of(view, part)
            name = _missing(view, dataset, rows) if len(rows) >= LEAST else ""
            if name:
                yield finding(
                    f"the prompt leaves out the column `{name}` of {part.args['path']}, which the "
                    "task needs",
                    asks.origin.span or dataset.name_span,
                    help=f"add it to the prompt: `paragraphs(..., row.{name})`",
                )


def _reads(dataset: Decl) -> Iterator[tuple[tuple[str | int, ...], object]]:
    for setting in dataset.settings.values():
        if isinstance(setting.value, Deferred):
            yield from reads(setting.value.expr, "row")


def _missing(view: View, dataset: Decl, rows: list[dict[str, Any]]) -> str:
    """Return a column that the task needs and the program does not name, or ""."""
    read = {str(keys[0]) for keys, _ in _reads(dataset) if keys}
    asked = " ".join(str(row.get(name, "")) for row in rows for name in read).lower()
    asked += said_to(dataset).lower()
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in read or _is_named(view, name):
            continue
        values = [row.get(name) for row in rows]
        filled = [value for value in values if value and isinstance(value, str | list)]
        if len(filled) < FILLED * len(rows) or len({*map(str, filled)}) < 2:
            continue
        if name == "input" and "instruction" in read:
            return name
        if name in MATERIAL and re.search(rf"\b(the|this|these|following) (\w+ )?{name}\b", asked):
            return name
    return ""


def _is_named(view: View, name: str) -> bool:
    """True if the program, or Python of it, names a column."""
    texts = [source.text for source in view.sources.values()]
    return any(re.search(rf"[.\"']{name}\b", text) for text in texts)
