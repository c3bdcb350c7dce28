"""D658 answered-prompt: the prompt ends with an answer of the assistant.

    prompt = chat("Solve it.", row.question, assistant = "<think>")       # fires
    prompt = row.messages          # fires if the first row ends with an answer
    prompt = chat("Solve it.", row.question)                              # silent

A prompt is rendered up to the beginning of the assistant's turn. If its last message is an answer,
that turn is over, and the policy begins another one. It then reads words that were meant as the
beginning of its answer as something that it has said before. If the message is a solution from the
rows, the policy only has to repeat it. Leave the last message out: `row.messages[0].content` in
`chat(...)`. The rule reads the first row of a local .jsonl file.
"""

from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from, first_row, value_at
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
MOST = 3
"""arguments of `chat`: system, user and assistant"""


def check(view: View) -> Findings:
    if not any(Role.SAMPLES in step.roles for step in view.program.flow):
        return
    for dataset in drawn_from(view):
        span = _answered(view, dataset)
        if span is not None:
            yield finding(
                f"prompts of `{dataset.name}` end with an answer, and the policy begins another",
                span,
                help="leave the last message out, such as `chat(user = row.messages[0].content)`",
            )


def _answered(view: View, dataset: Decl) -> Span | None:
    """Return the place of an answer at the end of a prompt."""
    prompt = dataset.settings["prompt"].value
    expr = prompt.expr if isinstance(prompt, Deferred) else None
    if isinstance(expr, ast.Call) and expr.function.text == "chat":
        named = [arg.value for arg in expr.args if arg.name == "assistant"]
        last = [arg.value for arg in expr.args[MOST - 1 : MOST] if arg.name is None]
        return next((value.span for value in [*named, *last]), None)
    keys = next((keys for keys, node in reads(expr, "row") if node is expr), None) if expr else None
    row = first_row(view, dataset) if keys is not None else None
    found = value_at(row, keys) if row is not None and keys is not None else None
    last_turn = found[-1] if isinstance(found, list) and found else None
    role = last_turn.get("role") if isinstance(last_turn, dict) else None
    return expr.span if expr is not None and role == "assistant" else None
