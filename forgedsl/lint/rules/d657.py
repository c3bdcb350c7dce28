"""D657 text-behind-messages: text is added to a list of messages.

    prompt = row.messages + " Use tags."                       # fires
    prompt = chat("Use tags.", row.question)                   # silent
    prompt = row.messages[0].content + " Use tags."            # silent

A column of messages is a list, and a text cannot be added to it: the first row ends the run. Say
what all prompts have in common in `system`, or add it to the content of a message. The rule goes by
the name of the column: `messages`, `conversations`, `conversation`, `turns`.
"""

from typing import TypeGuard

from forgedsl.ir.program import Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

finding = rule(__doc__, "W")
LISTS = ("messages", "conversations", "conversation", "turns")


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        prompt = dataset.settings["prompt"].value
        for node in walk(prompt.expr) if isinstance(prompt, Deferred) else ():
            if not isinstance(node, ast.Binary) or node.operator != "+":
                continue
            sides = (node.left, node.right)
            listed = [each for each in sides if _is_list(each)]
            if listed and any(isinstance(each, ast.String | ast.Binary) for each in sides):
                yield finding(
                    f"`{listed[0].text}` is a list of messages, and text is added to it",
                    node.span,
                    help="put the text into `system`, or add it to the content of a message, "
                    f"`{listed[0].text}[0].content`",
                )


def _is_list(node: ast.Expr) -> TypeGuard[ast.Path]:
    keys = next((keys for keys, read in reads(node, "row") if read is node), ())
    return isinstance(node, ast.Path) and bool(keys) and keys[-1] in LISTS
