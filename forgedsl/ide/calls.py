"""Signature help: `signature(document, offset) -> Call`, the parameters of the call at the cursor.

text up to the cursor --context--> name of the call, arguments so far
name --> the declared function, one of a module, a constructor, a built-in or a method of the flow
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from forgedsl.hir.evaluate import show
from forgedsl.ide import names
from forgedsl.ide.complete import function_block, packaged_parameters, signature_at
from forgedsl.ide.context import TOKEN, Context, context, trailing_path
from forgedsl.ide.signatures import Call, Shown, call_of, of_function, of_member
from forgedsl.ide.uses import uses_of
from forgedsl.ide.workspace import Document
from forgedsl.operations.registry import forms
from forgedsl.operations.statements import Form
from forgedsl.records import replace
from forgedsl.schema import builtins
from forgedsl.schema.kinds import FUNCTION_KINDS
from forgedsl.settings import Required, Signature
from forgedsl.syntax import ast

_ARGUMENT = re.compile(r"\s*(\w+)\s*=(?!=)")


def signature(document: Document, offset: int) -> Call | None:
    """Return the signature of the innermost call around an offset; None outside of one, in a
    comment, and in the parameters of a declaration."""
    where = context(document.text, offset)
    if where.inside == "comment":
        return None
    depth = len(where.stack)
    while depth and where.stack[depth - 1].bracket == "[":
        depth -= 1
    if not depth or where.stack[depth - 1].bracket != "(":
        return None
    opened = where.stack[depth - 1]
    head = opened.head
    path = trailing_path(head)
    if not path or (head[:1] in {(kind,) for kind in FUNCTION_KINDS} and len(head) == 2):
        return None
    made = _made(document, replace(where, stack=where.stack[:depth]), path, offset)
    if made is None:
        return None
    given = _given(document.text, opened.start + 1, offset)
    return replace(made, active=_active(made.parameters, given))


def _given(text: str, start: int, end: int) -> list[str]:
    """Return the names of the arguments up to the cursor, the last of which is being written; ""
    for those without a name."""
    begins, depth = [start], 0
    for match in TOKEN.finditer(text, start, end):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        elif match[0] == "," and depth == 0:
            begins.append(match.end())
    found = (_ARGUMENT.match(text, begin, end) for begin in begins)
    return [match[1] if match is not None else "" for match in found]


def _active(parameters: tuple[Shown, ...], given: list[str]) -> int | None:
    """Return the index of the parameter that is written: by its name, or by its position among
    those without a name. `...` takes all further ones."""
    listed = [each.name for each in parameters]
    if given[-1]:
        return listed.index(given[-1]) if given[-1] in listed else None
    first = next((at for at, name in enumerate(given) if name), len(given))
    if first < len(given):  # behind an argument with a name, the first that is missing
        taken = {*listed[:first], *given}
        return next((at for at, name in enumerate(listed) if name not in taken), None)
    at = len(given) - 1
    if at < len(listed):
        return at
    return len(listed) - 1 if listed[-1:] == ["..."] else None


# ---- where the parameters come from


def _made(opened: Document, where: Context, path: tuple[str, ...], offset: int) -> Call | None:
    """Return the signature of a call; names are those of the text when it could be parsed last."""
    document, text = opened.settled, opened.text
    name = ".".join(path)
    listed = signature_at(document, where)
    if listed is not None:
        return _constructor(listed, text, offset)
    if len(path) == 2:
        if path[0] in uses_of(document).imports:
            return of_member(document, *path)
        methods = names.flow_forms(document, path[0])
        method = next((form for form in methods if form.method == path[1]), None)
        return None if method is None else _form(name, method)
    definition = uses_of(document).top.get(name)
    node = None if definition is None else definition.node
    if isinstance(node, ast.FnDecl):
        return of_function(name, node.kind, node.fields, node.result, node.doc)
    if definition is not None and definition.kind in ("reward", "rubric"):
        scored = (Shown(name=each, text=each) for each in ("rollout", "target"))
        return call_of(name, scored, doc=getattr(node, "doc", ""))
    word = next((form for _, form in forms("") if form.method == name), None)
    if word is not None and function_block(where)[:1] == ("flow",):
        return _form(name, word)
    return _builtin(name)


def _constructor(found: Signature, text: str, offset: int) -> Call:
    listed = (*found.params, *packaged_parameters(text, found.name, offset))
    shown = []
    for each in listed:
        is_required = isinstance(each.default, Required)
        default = "" if is_required else f" = {show(each.default, each.type.base)}"
        type_ = each.type.text.replace("`", "")
        shown.append(Shown(name=each.name, text=f"{each.name}: {type_}{default}"))
    return call_of(found.name, shown, doc=found.doc)


def _form(name: str, form: Form) -> Call:
    """Return the signature of a method of the flow: its parameters, and the further ones that
    `NAME = ...` stands for."""
    shown = []
    for each in form.params:
        type_ = ": stream" if each in form.streams else ": int" if each in form.counts else ""
        shown.append(Shown(name=each, text=each + type_))
    if "NAME" in form.shown:
        shown.append(Shown(name="NAME", text="NAME = ..."))
    elif not form.params and "..." in form.shown:
        shown.append(Shown(name="...", text="batch, ..."))
    return call_of(name, shown, doc=form.doc)


def _builtin(name: str) -> Call | None:
    from forgedsl.reference.expressions import MEANINGS

    params = builtins.FUNCTIONS.get(name)
    if params is None:
        return None
    return call_of(name, _optional(params), doc=MEANINGS.get(name, ""))


def _optional(params: Iterable[str]) -> Iterator[Shown]:
    for each in params:
        shown = each.removesuffix("?")
        yield Shown(name=shown, text=f"[{shown}]" if each.endswith("?") else shown)
