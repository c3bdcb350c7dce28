"""Canonical formulas of a loss, from its tree's text: one per result, without names and spans.

    tree text -> {"loss": "...", "clip_frac": "...", "fields": "..."}

Losses with equal formulas compute the same, whatever their variable names and place in the file. A
value that is used more than once is written once, as `#1`, `#2` in order of use.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from forgedsl.losses.text import read
from forgedsl.losses.tree import Tree

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "lt": "<", "ge": ">=",
         "le": "<=", "eq": "==", "ne": "!=", "pow": "**"}  # fmt: skip
SILENT = ("expand",)


def meanings(text: str) -> dict[str, str]:
    """Return the formula of each result; `fields` lists the fields that the loss reads. The count
    of the step that a formula divides by is written after it."""
    tree = read(text)
    counts = dict(tree.totals)
    found = {}
    for name, value in tree.outputs:
        formula = _formula(tree, value)
        used = [each for each in counts if re.search(rf"\b{each}\b", formula)]
        found[name] = "; ".join([formula, *(f"{c} = {_formula(tree, counts[c])}" for c in used)])
    fields = sorted(f"{field.name} {field.type}" for field in tree.fields)
    return found | {"fields": ", ".join(fields)}


def _formula(tree: Tree, root: int) -> str:
    uses: Counter[int] = Counter()
    waiting = [root]
    while waiting:
        key = waiting.pop()
        uses[key] += 1
        if uses[key] == 1:
            waiting += tree.values[key].args
    shared: dict[int, str] = {}
    definitions: list[str] = []

    def text(key: int) -> str:
        value = tree.values[key]
        if not value.args:
            return str(value.attr if value.attr is not None else value.op)
        if key in shared:
            return shared[key]
        if value.op in SILENT:
            return text(value.args[0])
        written = _call(value.op, value.attr, [text(i) for i in value.args])
        if uses[key] > 1:
            shared[key] = f"#{len(shared) + 1}"
            definitions.append(f"{shared[key]} = {written}")
            return shared[key]
        return written

    result = text(root)
    return "; ".join([result, *definitions])


def _call(op: str, attr: Any, inputs: list[str]) -> str:
    if op in INFIX and len(inputs) == 2:
        return f"({inputs[0]} {INFIX[op]} {inputs[1]})"
    if op == "neg":
        return f"-{inputs[0]}"
    return f"{op}({', '.join([*inputs, *([str(attr)] if attr is not None else [])])})"
