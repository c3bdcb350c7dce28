"""D659 prompt-in-answers: the answers of a pair repeat the prompt that stands before them.

    prompt = row.question, chosen = row.full_good, rejected = row.full_bad       # fires
    {"question": "2+2?", "full_good": "2+2? It is 4.", "full_bad": "2+2? It is 5."}
    prompt = row.question, chosen = row.good, rejected = row.bad                 # silent

The policy then reads the question twice, and learns to write it before it answers (TRL #1884). The
rule reads the first row of a local file. Name the columns that hold the answers alone.
"""

from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_row, value_at
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

finding = rule(__doc__, "W")
SHORTEST = 4
"""characters of a question that no answer begins with by chance"""
LABEL = 12
"""characters that may stand before the question, such as `Question: `"""


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        chosen, rejected = (dataset.settings[key] for key in ("chosen", "rejected"))
        if chosen.value is None or rejected.value is None:
            continue
        answers = [_texts(view, dataset, key) for key in ("chosen", "rejected")]
        for asked in _texts(view, dataset, "prompt"):
            if len(asked) >= SHORTEST and all(
                any(0 <= text.find(asked) <= LABEL for text in texts) for texts in answers
            ):
                yield finding(
                    f"both answers of the first row of `{dataset.name}` begin with its prompt, "
                    "which is set as well",
                    place(chosen, dataset),
                    help="read columns with the answers alone, such as "
                    "`chosen = after(row.chosen, row.prompt)`",
                )
                break


def _texts(view: View, dataset: Decl, setting: str) -> list[str]:
    """Return the texts of the first row that a setting reads; none if it takes only what comes
    `after` something."""
    value, row = dataset.settings[setting].value, first_row(view, dataset)
    if not isinstance(value, Deferred) or row is None:
        return []
    if any(isinstance(n, ast.Call) and n.function.text == "after" for n in walk(value.expr)):
        return []
    found = [value_at(row, keys) for keys, _ in reads(value.expr, "row")]
    return [text.strip() for text in found if isinstance(text, str)]
