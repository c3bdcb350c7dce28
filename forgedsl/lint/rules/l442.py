"""L442 missing-diff: the objective reads `logprob`, but only another input has `diff`.

No gradient flows through an input without `diff`. With `diff` on `entropy` alone, the policy learns
from the entropy bonus and nothing from its rewards.

    loss pg(logprob: [B, T] f32, entropy: diff [B, T] f32, ...)          # fires
    loss pg(logprob: diff [B, T] f32, entropy: diff [B, T] f32, ...)     # silent

Add `diff`. If `logprob` is only a weight, write `stop(logprob)` where the loss uses it.
"""

from forgedsl.diagnostics import Edit, Fix, Reporter
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.build import NO_GRADIENT
from forgedsl.losses.infer import infer
from forgedsl.losses.tree import REDUCTIONS, Tree, Value
from forgedsl.records import replace
from forgedsl.source import Span
from forgedsl.syntax import ast

finding = rule(__doc__, "W")
LOGPROB = "logprob"


def check(view: View) -> Findings:
    seen: set[Span] = set()
    for loss in view.losses:
        field = next((f for f in loss.function.fields if f.name == LOGPROB), None)
        if field is None or field.type.span in seen or not loss.cached(_is_constant):
            continue
        seen.add(field.type.span)
        span = field.type.span
        edit = Edit(text="diff ", span=Span(span.file, span.start, span.start))
        others = [f.name for f in loss.tree.fields if f.type.diff]
        learned = " and ".join(f"`{name}`" for name in others)
        yield finding(
            f"`{LOGPROB}` has no `diff`: no gradient flows through it, only through {learned}",
            span,
            help=f"declare `{LOGPROB}: diff ...`, or write `stop({LOGPROB})` where it is a weight",
            fix=Fix(message=f"let gradient flow through `{LOGPROB}`", edits=(edit,), safe=False),
        )


def _is_constant(loss: LossView) -> bool:
    """True if the objective would have a gradient by `logprob` if that had `diff`. The tree of the
    loss as written lacks each `stop(x)` of an `x` without gradient, so the tree with `diff` is
    searched."""
    if any(field.name == LOGPROB and field.type.diff for field in loss.tree.fields):
        return False
    fields = tuple(
        replace(field, type=replace(field.type, diff=True))
        if field.name == LOGPROB and isinstance(field.type, ast.TensorType)
        else field
        for field in loss.function.fields
    )
    tree = infer(replace(loss.function, fields=fields), Reporter())
    return tree is not None and _learns(tree)


def _learns(tree: Tree) -> bool:
    """True if the objective has a gradient by `logprob`."""
    pending = [node for name, node in tree.outputs if name == "loss"]
    met: set[int] = set()
    while pending:
        node = pending.pop()
        if node in met:
            continue
        met.add(node)
        value = tree.values[node]
        if value.op == "input" and value.attr == LOGPROB:
            return True
        pending += _differentiated(value)
    return False


def _differentiated(value: Value) -> tuple[int, ...]:
    """Return the operands through which a gradient flows, if they have one."""
    if value.op in NO_GRADIENT or value.op == "python":
        return ()
    if value.op in REDUCTIONS or value.op == "clamp":  # not the mask, not the bounds
        return value.args[:1]
    return value.args[1:] if value.op == "where" else value.args
