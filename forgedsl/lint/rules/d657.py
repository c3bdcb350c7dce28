"""D657 text-behind-messages: text is added to a list of messages.

    prompt = row.messages + " Use tags."                       # fires
    prompt = chat(none, row.question) + " Use tags."           # fires
    prompt = chat("Use tags.", row.question)                   # silent
    prompt = row.messages[0].content + " Use tags."            # silent

A column of messages is a list, and a text cannot be added to it: the first row ends the run. Say
what all prompts have in common in `system`, or add it to the content of a message. The rule goes by
the name of the column (`messages`, `conversations`, `conversation`, `turns`) or by `chat(...)`.
"""

from forgedsl.ir.program import Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import CHATS
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

finding = rule(__doc__, "W")
LISTS = ("messages", "conversations", "conversation", "turns")
TEXTS = ("question", "problem", "prompt", "instruction", "query", "text", "input", "content")
CALLED = "chat(...)"


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        prompt = dataset.settings["prompt"].value
        for node in walk(prompt.expr) if isinstance(prompt, Deferred) else ():
            if not isinstance(node, ast.Binary) or node.operator != "+":
                continue
            sides = (node.left, node.right)
            listed = [each for each in sides if _is_list(each)]
            others = [each for each in sides if not _is_list(each)]
            if not listed or not others or not any(_is_text(each) for each in others):
                continue
            first = listed[0]
            text = first.text if isinstance(first, ast.Path) else CALLED
            inside = f"`{text}[0].content`" if isinstance(first, ast.Path) else "`chat(...)`"
            yield finding(
                f"`{text}` is a list of messages, and text is added to it",
                node.span,
                help=f"put the text into `system`, or into the content of a message, {inside}",
            )


def _is_list(node: ast.Expr) -> bool:
    """True for `chat(...)`, and for a column that is named for messages."""
    if isinstance(node, ast.Call):
        return node.function.text in CHATS
    keys = next((keys for keys, read in reads(node, "row") if read is node), ())
    return bool(keys) and keys[-1] in LISTS


def _is_text(node: ast.Expr) -> bool:
    """True for a string, for a sum that has one, and for a column that is named for a text."""
    if isinstance(node, ast.String | ast.Binary):
        return True
    keys = next((keys for keys, read in reads(node, "row") if read is node), ())
    return bool(keys) and keys[-1] in TEXTS
