"""Reports values that cannot be stream arguments: constants, arithmetic, datasets.

batch = replay(kept, adv = norm(score) * 2)     arithmetic on streams belongs in an advantage
rollout = generator.sample(sums, n = 8)         a dataset is no stream: draw from it first
"""

from __future__ import annotations

from collections.abc import Collection

from forgedsl.hir.file import File
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.operations.registry import OPERATIONS
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names

STREAMS = frozenset(name for o in OPERATIONS for form in o.forms for name in form.streams)
"""parameters that take only a stream"""


def not_a_stream(resolver: File, argument: str, value: ast.Expr, streams: Collection[str]) -> bool:
    """Report an argument that is arithmetic, a constant or a dataset where a stream is needed."""
    if not isinstance(value, ast.Path) and any(parts[0] in streams for parts in names(value)):
        help_text = "compute it in a rubric, an advantage or a filter, and call that here"
        if argument.startswith("batch"):
            help_text = "to train on both batches in one step, write `merge(a, b)`"
        resolver.ctx.error("F119", "a flow cannot contain arithmetic", value.span, help=help_text)
        return True
    if argument not in STREAMS:
        return False
    if isinstance(value, ast.Path) and value.text in resolver.table.params:
        type_ = getattr(resolver.table.params[value.text].type, "name", "")
        kind = f"parameter ({type_})" if type_ else "parameter"
        help_text = did_you_mean(nearest(value.text, streams))
        help_text = help_text or "name the result of a statement above"
        message = f"`{value.text}` is a {kind}, not a stream"
        resolver.ctx.error("F109", message, value.span, help=help_text)
        return True
    declared = resolver.declared_at(value)[0] if isinstance(value, ast.Path) else None
    is_dataset = declared is not None and declared.kind.name == "dataset"
    what = "dataset" if is_dataset else "constant"
    help_text = f"to draw from it, write `prompt = {declared.name}.draw(16)`" if is_dataset else ""  # type: ignore[union-attr]
    message = f"`{argument}` is a stream, not a {what}"
    resolver.ctx.error("F109", message, value.span, help=help_text)
    return True
