"""R525 characters-for-tokens: a length in characters is compared with a limit in tokens.

`len(r.response)` counts characters, about four per token. A bonus for brevity that should reach to
`max_tokens` is already 0 at a quarter of it (ms-swift #3353). Use `r.num_tokens`.

    reward short(r: Rollout) -> f32 = clamp(1.0 - len(r.response) / max_new, 0.0, 1.0)     # fires
    reward short(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / max_new, 0.0, 1.0)        # silent
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.ir.program import Constant, Function, Scope
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        body = reward.body
        if not isinstance(body, Function) or view.max_tokens is None:
            continue
        for node in walk(body.statements):
            if not isinstance(node, ast.Binary):
                continue
            for one, other in ((node.left, node.right), (node.right, node.left)):
                length = _length(one)
                if length is not None and _number(other, body.scope) == view.max_tokens:
                    edit = Edit(text=f"{length}.num_tokens", span=one.span)
                    yield finding(
                        f"characters are compared with {view.max_tokens} tokens",
                        node.span,
                        help=f"`{length}.num_tokens` counts tokens",
                        fix=Fix(message="count tokens", edits=(edit,), safe=False),
                    )


def _length(node: ast.Expr) -> str | None:
    """Return the rollout whose response length is measured."""
    if not isinstance(node, ast.Call) or node.function.text != "len" or len(node.args) != 1:
        return None
    text = node.args[0].value
    is_response = isinstance(text, ast.Path) and text.parts[1:] == ("response",)
    return text.parts[0] if is_response and isinstance(text, ast.Path) else None


def _number(node: ast.Expr, scope: Scope) -> object:
    if isinstance(node, ast.Integer):
        return node.value
    found = scope.lookup(node.parts) if isinstance(node, ast.Path) else None
    return found.value if isinstance(found, Constant) else None
