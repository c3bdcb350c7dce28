"""D671 roles-exchanged: the row is in the system message, and the user says the same in every row.

    prompt = chat(row.question, "Solve it. Put the number inside <answer> tags.")        # fires
    prompt = chat("Solve it. Put the number inside <answer> tags.", row.question)        # silent
    prompt = chat(system = row.persona, user = row.question)                             # silent

`chat(system, user)` takes the system message first. A chat model answers the user, and reads the
system message as rules. Exchange the arguments, or name them: `chat(system = ..., user = ...)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import constant_text
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        for call, user in _exchanged(dataset):
            yield finding(
                f"the user's message is the same in every row of `{dataset.name}`, and the system "
                "message is read from the row",
                user.span,
                help=f"exchange them: `chat(system = {_short(user)}, user = "
                f"{_short(_argument(call, 'system', 0))})`",
            )


def _exchanged(dataset: Decl) -> Iterator[tuple[ast.Call, ast.Expr]]:
    """Yield calls of `chat` whose user's message is constant and whose system message reads the
    row, with the user's message."""
    for setting in (dataset.settings[key].value for key in ("prompt", "chat")):
        if not isinstance(setting, Deferred):
            continue
        for node in walk(setting.expr):
            if not isinstance(node, ast.Call) or node.function.text != "chat":
                continue
            system, user = (_argument(node, n, i) for i, n in enumerate(("system", "user")))
            if system is None or user is None or not any(True for _ in reads(system, "row")):
                continue
            if constant_text(user, setting.scope) is not None:
                yield node, user


def _argument(call: ast.Call, name: str, place: int) -> ast.Expr | None:
    named = {each.name: each.value for each in call.args if each.name}
    given = [each.value for each in call.args if not each.name]
    return named.get(name, given[place] if len(given) > place else None)


def _short(node: ast.Expr | None) -> str:
    return node.text if isinstance(node, ast.Path) else "..."
