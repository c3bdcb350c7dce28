"""Resolves `environment lake = gymnasium("FrozenLake-v1", is_slippery = false)`.

Names and arguments are compared with those of the installed package (hir.gymnasium_registry), which
is not imported. A space without a text form is refused if the class writes it out. The class
that a run plays (forgedsl.gymnasium) checks all of this again when it makes the environment. If the
package is not installed, nothing is checked, and a rule (X834) warns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import counted
from forgedsl.hir.context import ERROR, spelled
from forgedsl.hir.file import File
from forgedsl.hir.gymnasium_registry import (
    PACKAGE,
    Described,
    Entry,
    Space,
    described,
    registered,
    version,
)
from forgedsl.hir.pyimport import python_text
from forgedsl.ir.program import PythonEnvironment
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.records import replace
from forgedsl.schema.constructors import GYMNASIUM
from forgedsl.settings import ANY, STR, Parameter, Signature
from forgedsl.source import Span
from forgedsl.syntax import ast

SHAPE = '`environment lake = gymnasium("FrozenLake-v1")`'
PARTS = ("reward", "invalid")
"""reward parts: the sum of gymnasium's rewards, and the number of answers that were no action"""
PLACEHOLDER = re.compile(r"\{(\w+)\}")
ALWAYS = ("observation", "actions", "message")
"""placeholders of `observation = "..."` that every environment has"""
TEXT = ("Text", "Discrete", "MultiDiscrete", "MultiBinary")
"""spaces whose values have a natural text"""
MOST_LISTED = 12
ANSI = "ansi"
"""render mode that gives text"""


def resolve_gymnasium(
    resolver: File, call: ast.Call | None, span: Span
) -> PythonEnvironment | None:
    """Return the environment; None after reporting a mistake."""
    ctx = resolver.ctx
    first = call.args[0] if call is not None and call.args else None
    if call is None or first is None or first.name not in (None, "id"):
        message = "`gymnasium` needs the name of an environment as its first argument"
        ctx.error("F114", message, span, help=SHAPE)
        return None
    named = _named(resolver, first.value)
    if named is None:
        return None
    name, module, own, file, known = named
    found = described(known[own]) if known and own in known else Described()
    signature = _signature(found, call)
    bound = resolver.coercer.bind(signature, call.args, span, resolver.scope)
    if bound is ERROR or _refused(resolver, call, name, found, bound):
        return None
    ours = {parameter.name for parameter in GYMNASIUM.params}
    given = {arg.name for arg in call.args if arg.name}
    return PythonEnvironment(
        module=resolver.rebase(module) if file is not None else "",
        name=GYMNASIUM.name,
        init=(),
        tools=(),
        parts=PARTS,
        args={
            "id": name if file is None else own,
            **{key: bound[key] for key in sorted(ours & given - {"id"})},
        },
        options={key: bound[key] for key in bound if key in given - ours},
        packages=(PACKAGE, *([module.partition(".")[0]] if module and file is None else [])),
        span=span,
    )


def _named(
    resolver: File, written: ast.Expr
) -> tuple[str, str, str, Path | None, dict[str, Entry] | None] | None:
    """Return the parts of the name `MODULE:NAME`: the whole name, MODULE, NAME, the file of the
    module, and the environments that it registers. None after reporting a mistake."""
    ctx = resolver.ctx
    name = resolver.coercer.value(written, STR, resolver.scope, "`id` of `gymnasium`")
    if name is ERROR:
        return None
    module, _, own = name.rpartition(":")
    place, file = written.span, None
    if name.endswith(".py") or not own:
        message, shape = f"`{name}` does not end with the name of an environment", SHAPE
        if name.endswith(".py"):
            shape = f'`gymnasium("{name}:NAME")`, with a name that the file registers'
        ctx.error("F113", message, place, help=shape)
        return None
    if module.endswith(".py"):
        if python_text(module, place, resolver.folder, ctx) is None:
            return None
        assert resolver.folder is not None
        file = resolver.folder / module
    known = registered(module, file)
    if known is not None and own not in known and (known or not module):
        what = f"{PACKAGE} {version()} has no environment"
        if module:
            what = f"`{module}` registers no environment"
        close = _versions(own, known) or nearest(own, known)
        fix = spelled(written, own, close)
        help_text = did_you_mean(close) or _list_names(known)
        ctx.error("F101", f"{what} `{own}`", place, help=help_text, fix=fix)
        return None
    return name, module, own, file, known


def _versions(own: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the newest known version of an environment, for a name whose version is missing or
    unknown."""
    base = own.rpartition("-v")[0] or own
    found = [name for name in known if re.fullmatch(re.escape(base) + r"-v\d+", name)]
    return tuple(sorted(found, key=lambda name: int(name.rpartition("-v")[2]))[-1:])


def _list_names(known: Collection[str]) -> str:
    """Return the help that lists names, if they are few."""
    if len(known) > MOST_LISTED:
        return "`gymnasium.pprint_registry()` in Python lists the names"
    return "known are " + ", ".join(f"`{name}`" for name in known) if known else ""


def _signature(found: Described, call: ast.Call) -> Signature:
    """Return what the call may name: our arguments, and those of the class. Without a class any
    argument is accepted."""
    ours = {parameter.name for parameter in GYMNASIUM.params}
    if found.params is None:
        free = dict.fromkeys(arg.name for arg in call.args if arg.name and arg.name not in ours)
        more = tuple(Parameter(name=n, type=ANY, default=None, keyword=True) for n in free)
    else:
        more = tuple(p for p in found.params if p.name not in ours | {"render_mode"})
    instead = f"a run chooses the render mode: `{ANSI}`, or none" if any(
        arg.name == "render_mode" for arg in call.args
    ) else ""  # fmt: skip
    return replace(GYMNASIUM, params=(*GYMNASIUM.params, *more), instead=instead)


def _refused(
    resolver: File, call: ast.Call, name: str, found: Described, bound: dict[str, Any]
) -> bool:
    """Report an environment that has no text, names of actions and an `observation` that do not fit
    it. Return True after a report."""
    ctx, place = resolver.ctx, call.args[0].value.span
    spans = {arg.name: arg.value.span for arg in call.args if arg.name}
    if ANSI not in found.modes and (bad := not_text(found.observation)):
        message = f"observations of `{name}` are of {bad}, which cannot be shown as text"
        ctx.error("F113", message, place, help=OWN_CLASS)
    elif found.action is not None and found.action.name not in ("Discrete", "Text"):
        message = f"actions of `{name}` are of {found.action.name}, which an answer cannot be"
        ctx.error("F113", f"{message}: {ACTIONS}", place, help=OWN_CLASS)
    elif (message := _actions(bound["actions"], found.action)) != "":
        ctx.error("F113", message, spans.get("actions", place), help=IN_ORDER)
    elif bound["observation"] == "":
        message = "`observation` of `gymnasium` is empty, so the policy would see nothing"
        ctx.error("F113", message, spans["observation"], help='such as `"{message}{observation}"`')
    elif bound["observation"] is not None and found.observation is not None:
        words = [*ALWAYS, *found.observation.inner]
        words += ["render"] if ANSI in found.modes else []
        for word in PLACEHOLDER.findall(bound["observation"]):
            if word not in words:
                message = f"observations of `{name}` have no `{{{word}}}`"
                listed = ", ".join(f"`{{{each}}}`" for each in words)
                help_text = did_you_mean(nearest(word, words)) or f"known are {listed}"
                ctx.error("F113", message, spans["observation"], help=help_text)
                return True
        return False
    else:
        return False
    return True


ACTIONS = "one of a Discrete space, or text"
IN_ORDER = (
    "give each action a name of its own, in the order of their numbers, or leave `actions` out"
)
OWN_CLASS = (
    "write a class `Environment` that makes it and says its observations and actions in text "
    "(docs/guide/environments.md)"
)


def not_text(space: Space | None) -> str:
    """Return the class of the first space in a space whose values have no text; "" if there is
    none, or if the space is not known."""
    if space is None or space.name in TEXT:
        return ""
    if space.name in ("Tuple", "Dict"):
        return next((bad for each in space.inner.values() if (bad := not_text(each))), "")
    return space.name


def _actions(names: list[str] | None, space: Space | None) -> str:
    """Return what is wrong with the names of actions."""
    if names is None:
        return ""
    low = [name.strip().lower() for name in names]
    if len({*low}) != len(low) or not all(low):
        return "`actions` must be different names, none of them empty"
    if space is not None and space.name == "Text":
        return "`actions` has no effect: any text is an action"
    if space is not None and space.size not in (None, len(names)):
        return f"`actions` names {counted(len(names), 'action')}, but there are {space.size}"
    return ""
