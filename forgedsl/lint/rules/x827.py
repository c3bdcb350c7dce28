"""X827 policy-code-run: Python of the policy runs in the process of the environment.

    @tool
    def calculate(self, expression: str) -> str:
        return str(eval(expression))                     # fires
        return str(value(ast.parse(expression, mode="eval").body))       # silent

`eval` and `exec` give the policy everything that the process has: the answer that the environment
keeps, its rewards, files, and the network (mcp-use #1718). An empty `__builtins__` does not keep it
in. Parse the text, and compute only what you know; or run it in a sandbox
(`forgedsl.runtime.sandbox`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")
RUNS = ("eval", "exec")


def check(view: View) -> Findings:
    for env in python_environments(view):
        node, name, how = _run(env)
        if node is not None:
            yield finding(
                f"`{name}` of `{env.env.name}` runs text of the policy by `{how}`, in its own "
                "process",
                env.env.name_span,
                related=(Label(text="here", span=env.at(node)),),
                help="parse it with `ast.parse` and compute what you know, or run it in a sandbox",
            )


def _run(env: PythonClass) -> tuple[python.AST | None, str, str]:
    """Return a call of `eval` or `exec` on what the policy wrote: an argument of a tool, or its
    turn."""
    import ast as python

    from forgedsl.lint.python_bodies import Body

    for name, method in env.methods.items():
        given = {each.arg for each in method.args.args[1:]}
        written = given if name in env.tools else given & {"turn"}
        if not written:
            continue
        body = Body(method, env.module)
        for node in python.walk(method):
            how = getattr(node.func, "id", "") if isinstance(node, python.Call) else ""
            first = node.args[:1] if isinstance(node, python.Call) and how in RUNS else []
            if any(body.names(argument) & written for argument in first):
                return node, name, how
    return None, "", ""
