"""Checks the type of a dataset column: text or messages, not the row, a number or a record.

Reports an expression whose values can be neither text nor messages.
"""

from __future__ import annotations

from forgedsl.emit.scalars import WORDS, Scalars
from forgedsl.syntax import ast

CONVERSATIONS = ("prompt", "chat", "chosen", "rejected")
MESSAGE = "write a message as `record(role = ..., content = ...)`"


def check_column(scalars: Scalars, column: str, node: ast.Expr, type_: str) -> None:
    """Report an expression that is neither text nor messages for any row."""
    if column not in CONVERSATIONS:
        return
    found = WORDS.get(type_, "") if type_ not in ("str", "list") else ""
    help_text = f"`{column} = {'row.messages' if column == 'chat' else 'row.question'}`"
    if isinstance(node, ast.Path) and node.text == "row":
        found, help_text = "the whole row", f"name a column of the row: {help_text}"
    elif isinstance(node, ast.Call) and node.function.text == "record":
        found, help_text = "one record", f"write a list of messages as `[record(...)]`; {MESSAGE}"
    elif isinstance(node, ast.List):
        first = next(iter(node.items), None)
        called = first.function.text if isinstance(first, ast.Call) else ""
        if called in ("chat", "sharegpt"):
            found, help_text = "a list of lists", f"`{called}(...)` is already a list of messages"
        elif isinstance(first, ast.String):
            found, help_text = "a list of texts", MESSAGE
    if found:
        what = "messages" if column == "chat" else "text or messages"
        message = f"`{column}` must be {what}, but this is {found}"
        scalars.error("T702", "dtype", message, node.span, help=help_text)
