"""D670 separator-cut: a mark of the separator is left before each target.

    target = after(row.answer, "###")                # fires: rows have `#### 72`, so `# 72` is left
    target = after(row.answer, "#### ")              # silent

A reward that compares texts then finds no answer right, and one that reads numbers finds some. The
rule reads some rows of a local file, and knows GSM8K: it fires if nearly all targets begin with the
last character of the separator, or with another mark of the same kind, such as `:` or `=`.
"""

from __future__ import annotations

from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import rows_of, value_at
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads

finding = rule(__doc__, "W")
MARKS = "#:=>|*-"
MOST, LEAST = 0.9, 2
"""share of the targets that begin with the mark; the fewest rows that are looked at"""
GSM8K = "Natalia sold 48 / 2 = 24 clips.\n#### 72"
"""the form of an answer of GSM8K"""


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        target = dataset.settings["target"]
        expr = target.value.expr if isinstance(target.value, Deferred) else None
        if not isinstance(expr, ast.Call) or expr.function.text != "after" or len(expr.args) != 2:
            continue
        mark, column = expr.args[1].value, expr.args[0].value
        keys = next((keys for keys, node in reads(column, "row") if node is column), None)
        if not isinstance(mark, ast.String) or not keys or not mark.value.strip():
            continue
        left = _left(_texts(view, dataset, keys), mark.value)
        if left:
            yield finding(
                f"targets of `{dataset.name}` begin with `{left}`, because the separator in the "
                f"rows is longer than `{mark.value}`",
                place(target, dataset),
                help=f"write the whole separator, such as `{mark.value}{left}`",
            )


def _texts(view: View, dataset: Decl, keys: tuple[str | int, ...]) -> list[str]:
    """Return the texts of a column in some rows."""
    sources = [*parts(dataset.settings["source"].value)]
    if sources and all(str(each.args.get("id", "")).endswith("gsm8k") for each in sources):
        return [GSM8K, GSM8K] if keys == ("answer",) else []
    found = [value_at(row, keys) for each in sources for row in rows_of(view, each)]
    return [text for text in found if isinstance(text, str)]


def _left(texts: list[str], mark: str) -> str:
    """Return the mark, with the spaces behind it, that is left before nearly all targets."""
    targets = [text.partition(mark)[2] for text in texts if mark in text]
    if len(targets) < LEAST:
        return ""
    first = targets[0][:1]
    same = sum(target[:1] == first for target in targets)
    if not first or first not in MARKS or same < MOST * len(targets):
        return ""
    if first == "-" and all(target[1:2].isdigit() for target in targets):
        return ""  # negative numbers
    rest = targets[0][1:]
    return first + (" " if rest.startswith(" ") else "")
