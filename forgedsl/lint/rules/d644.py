"""D644 text-with-holes: a string of a dataset contains `{row.question}`, which is not replaced.

Strings are used as written, so the prompt of every row would be the same, braces included. Only the
prompt of a judge has placeholders.

    prompt = "Q: {row.question}\\nA:"                       # fires
    prompt = "Q: {question}\\nA:"                           # fires: nothing of the row is read
    prompt = "Q: " + row.question + "\\nA: \\\\boxed{answer}"  # silent

Join strings with `+`; convert numbers with `text(row.id)`.
"""

import re
from collections.abc import Iterator

from forgedsl.ir.program import Constant, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

finding = rule(__doc__, "D")
COLUMNS = ("prompt", "target", "chat", "chosen", "rejected")
OF_A_ROW = r"""\{\s*row(\.\w+|\[["']?\w+["']?\])+\s*\}"""
A_NAME = r"(?<![\w\\{}$])\{[A-Za-z_]\w*\}(?!\})"
"""matches `{question}`, but neither `\\boxed{answer}` nor `{{ a template }}`"""


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        for column in COLUMNS:
            value = dataset.settings[column].value
            if not isinstance(value, Deferred):
                continue
            alone = not any(reads(value.expr, "row"))
            for text, node in _texts(value):
                if "{" not in text:
                    continue
                placeholder = re.search(OF_A_ROW, text)
                placeholder = placeholder or (re.search(A_NAME, text) if alone else None)
                if placeholder is not None:
                    name = placeholder[0].strip("{} ").removeprefix("row.")
                    yield finding(
                        f"nothing fills `{placeholder[0]}`: a text is taken as it is written",
                        node.span,
                        help=f'texts are joined with `+`: `"..." + row.{name} + "..."`',
                    )


def _texts(value: Deferred) -> Iterator[tuple[str, ast.Expr]]:
    """Yield the strings in an expression, and those of parameters that it names."""
    for node in walk(value.expr):
        if isinstance(node, ast.String):
            yield node.value, node
        elif isinstance(node, ast.Path):
            found = value.scope.lookup(node.parts)
            if isinstance(found, Constant) and isinstance(found.value, str):
                yield found.value, node
