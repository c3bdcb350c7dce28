"""Resolves the losses that evals measure, like the losses of a step.

    eval nll { dataset = demos, loss = rl.sft, every = 50 }

A loss with its own parameter values (`rl.dpo(beta = 0.3)`) is stored under the name of the eval,
because the step may use the same loss with other values.
"""

from __future__ import annotations

from forgedsl.hir.context import ERROR
from forgedsl.hir.file import File
from forgedsl.hir.specialize import resolve_loss
from forgedsl.ir.program import Decl, Deferred, Function, Ref, Value
from forgedsl.records import replace
from forgedsl.syntax import ast


def with_losses(
    decls: dict[str, Decl], resolver: File, functions: dict[str, Function]
) -> dict[str, Decl]:
    """Return the declarations, with each eval's loss replaced by its name; add the losses to
    `functions`."""
    return {
        name: _eval(decl, resolver, functions) if decl.kind == "eval" else decl
        for name, decl in decls.items()
    }


def _eval(decl: Decl, resolver: File, functions: dict[str, Function]) -> Decl:
    score, loss = decl.settings["score"].value, decl.settings["loss"]
    if score is ERROR or loss.value is ERROR:
        return decl
    if (score is None) == (loss.value is None):
        what = "neither `score` nor `loss`" if score is None else "a `score` and a `loss`"
        help_text = (
            "use `score` for sampled answers, or `loss` for the dataset's conversations or pairs"
        )
        message = f"eval `{decl.name}` has {what}"
        resolver.ctx.error("F110", message, decl.name_span, help=help_text)
        return decl
    if not isinstance(loss.value, Deferred):
        return decl
    _unsampled(decl, resolver)
    own: dict[str, Function] = dict(functions)
    expr = loss.value.expr
    name = resolve_loss(expr, resolver, own)
    if name is None:
        return decl
    key = f"{decl.name}.loss" if isinstance(expr, ast.Call) else name
    functions[key] = own[name]
    found = Value(value=Ref(name=key), origin=loss.origin, place=loss.place)
    return replace(decl, settings={**decl.settings, "loss": found})


def _unsampled(decl: Decl, resolver: File) -> None:
    """Report settings of sampling in an eval that measures a loss: it samples nothing."""
    for name, value in decl.settings.items():
        sampled = name.startswith("sample.") or name in ("env", "max_turns")
        if sampled and value.origin.layer != "default":
            message = f"`{name}` applies only to an eval with a `score`, which samples answers"
            resolver.ctx.error("F103", message, value.place or decl.name_span)
