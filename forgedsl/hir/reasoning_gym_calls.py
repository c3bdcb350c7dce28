"""Resolves `source = reasoning_gym("leg_counting", size = 1000, seed = 7, min_animals = 2)`.

The task and the fields of its configuration are compared with those of the installed package
(hir.reasoning_gym_registry), which is not imported. The process that makes the rows of a run checks
them again. If the package is not installed, nothing is checked, and a rule (X834) warns.
"""

from __future__ import annotations

from typing import Any, Protocol

from forgedsl.hir.context import ERROR, Context, spelled
from forgedsl.hir.reasoning_gym_registry import (
    COMPOSITE,
    PACKAGE,
    Config,
    config_of,
    refused,
    tasks,
    version,
)
from forgedsl.ir.program import Constructor, Scope
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.records import replace
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.settings import ANY, STR, Parameter, Signature, Type
from forgedsl.source import Span
from forgedsl.syntax import ast

OURS = tuple(parameter.name for parameter in REASONING_GYM.params)
SHAPE = '`reasoning_gym("leg_counting", size = 1000, seed = 1)`'
MIXED = (
    '`mixture([reasoning_gym("leg_counting"), reasoning_gym("gcd")], weights = [2, 1])` draws from '
    "several tasks"
)


class Values(Protocol):
    """The part of hir.settings.Coercer that is used here."""

    ctx: Context

    def value(self, expr: ast.Expr, type_: Type, scope: Scope, what: str) -> Any: ...

    def bind(
        self, signature: Signature, args: tuple[ast.Arg, ...], span: Span, scope: Scope
    ) -> Any: ...


def resolve_reasoning_gym(
    coercer: Values, args: tuple[ast.Arg, ...], span: Span, scope: Scope
) -> Any:
    """Return the source; ERROR after reporting a mistake."""
    ctx = coercer.ctx
    first = next((arg for arg in args[:1] if arg.name in (None, "task")), None)
    if first is None:
        message = "`reasoning_gym` needs the name of a task as its first argument"
        return ctx.error("F114", message, span, help=SHAPE)
    task = coercer.value(first.value, STR, scope, "`task` of `reasoning_gym`")
    if task is ERROR:
        return ERROR
    known = tasks()
    if known is not None and (task not in known or task == COMPOSITE):
        message, place = f"{PACKAGE} {version()} has no task `{task}`", first.value.span
        if task == COMPOSITE:
            message = f"`{task}` mixes other tasks of {PACKAGE}: name them"
            return ctx.error("F113", message, place, help=MIXED)
        close = nearest(task, known)
        help_text = did_you_mean(close) or f"{len(known)} tasks are known, such as `leg_counting`"
        fix = spelled(first.value, task, close)
        return ctx.error("F101", message, place, help=help_text, fix=fix)
    config = config_of(task)
    for arg in args:
        if config is not None and arg.name and arg.name in config.closed:
            message = f"`{arg.name}` of `{task}` is of the Python type {config.closed[arg.name]}"
            return ctx.error("F113", f"{message}, which a .forge file cannot write", arg.span)
    bound = coercer.bind(signature(config, args), args, span, scope)
    if bound is ERROR:
        return ERROR
    given = {arg.name for arg in args if arg.name and arg.name not in OURS}
    options = {key: bound[key] for key in sorted(given)}
    if config is not None and (why := refused(config, {**options, "size": bound["size"]})):
        return ctx.error("F113", f"`{task}` of {PACKAGE} refuses these values: {why}", span)
    ours = {key: bound[key] for key in OURS}
    return Constructor(name=REASONING_GYM.name, args={**ours, "options": options}, span=span)


def signature(config: Config | None, args: tuple[ast.Arg, ...] = ()) -> Signature:
    """Return what a call may name: `size`, `seed` and the fields of the task's configuration.
    Without a configuration any argument of `args` is accepted."""
    if config is None:
        free = dict.fromkeys(arg.name for arg in args if arg.name and arg.name not in OURS)
        more = tuple(Parameter(name=n, type=ANY, default=None, keyword=True) for n in free)
    else:
        more = config.params
    return replace(REASONING_GYM, params=(*REASONING_GYM.params, *more))
