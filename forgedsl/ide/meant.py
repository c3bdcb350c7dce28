"""What a wrong name of a finding was meant to be, as edits: the names in "did you mean", and those
that replace a name of another tool.

    in the trainer, `learning_rate = 1e-5`   -->   optimizer.lr = 1e-5
    in the schedule                          -->   the same, moved to the trainer
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Edit
from forgedsl.ide import names
from forgedsl.ide.moving import Home, insert, removed
from forgedsl.ide.uses import uses_of
from forgedsl.ide.workspace import Document
from forgedsl.mistakes import replacements
from forgedsl.mistakes.tensor_calls import LIBRARIES
from forgedsl.records import dataclass
from forgedsl.schema import builtins
from forgedsl.schema.kinds import KINDS, SERVICES
from forgedsl.services.base import Capability
from forgedsl.services.registry import kinds as service_kinds
from forgedsl.settings import Setting
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

_QUOTED = re.compile(r"`([^`]+)`")
_CODES = ("F101", "F103", "F104", "F109", "F113", "F114", "F119")
HERE = "here it is "
_ROLES = {"trainer": Capability.TRAINS, "generator": Capability.SAMPLES}
_SCHEMAS = {**KINDS, **SERVICES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A change that a finding's help stands for."""

    message: str
    edits: tuple[Edit, ...]


def choices(document: Document, finding: Diagnostic) -> list[Choice]:
    """Return the changes that the help of a finding names, best first. The fix of the finding
    itself is left out."""
    if finding.help.startswith("did you mean "):
        found = [*_near(document, finding)]
    elif finding.help.startswith(HERE) and finding.code in _CODES and finding.fix is None:
        found = [*_replaced(document, finding)]
    else:
        return []
    known = () if finding.fix is None else finding.fix.edits
    return [choice for choice in found if choice.edits and choice.edits != known]


# ---- did you mean


def _near(document: Document, finding: Diagnostic) -> Iterator[Choice]:
    """Yield the names of "did you mean `a` or `b`?" in the place of the wrong one: the last quoted
    name of the message that the marked text has once."""
    span = finding.span
    marked = document.text[span.start : span.end]
    wrong = next(
        (each for each in _QUOTED.findall(finding.message)[::-1] if _times(marked, each) == 1), ""
    )
    if not wrong:
        return
    start = span.start + _place(marked, wrong)
    place = Span(span.file, start, start + len(wrong))
    assigned = _assign_at(document, span) if finding.code == "F103" else None
    for name in _QUOTED.findall(finding.help.partition("?")[0]):
        if name.startswith("--") or name == wrong:
            continue
        title = f"replace `{wrong}` by `{name}`"
        if assigned is not None and "." in name:  # a setting of another block
            yield from _set(document, assigned, assigned.kind, name)
            continue
        quoted = marked[:1] == '"' and name[:1] == '"'
        yield Choice(message=title, edits=(Edit(text=name, span=span if quoted else place),))


def _pattern(name: str) -> re.Pattern[str]:
    before, after = (r"\b" if name[i].isalnum() or name[i] == "_" else "" for i in (0, -1))
    return re.compile(before + re.escape(name) + after)


def _times(text: str, name: str) -> int:
    return len(_pattern(name).findall(text))


def _place(text: str, name: str) -> int:
    found = _pattern(name).search(text)
    assert found is not None
    return found.start()


# ---- names of other tools


def _replaced(document: Document, finding: Diagnostic) -> Iterator[Choice]:
    """Yield what replaces a name of another tool."""
    span = finding.span
    name = document.text[span.start : span.end].strip('"')
    call = next((c for c in _calls(document) if c.function.span.start == span.start), None)
    if call is not None:
        yield from _called(document, call)
        return
    assigned = _assign_at(document, span)
    if assigned is not None:
        yield from _setting(document, assigned, name.rpartition(".")[2].lower())
        return
    args = (arg for call in _calls(document) for arg in call.args if arg.name == name)
    argument = next((arg for arg in args if arg.span.start == span.start), None)
    new = replacements.ARGUMENTS.get(name.lower())
    if argument is not None and new is not None:
        value = _text(document, argument.value)
        text = ", ".join(f"{each} = {value}" for each in new)
        yield _choice(_text(document, argument), text, argument.span)
    elif argument is None and (word := replacements.NAMES.get(name.lower())) is not None:
        yield _choice(name, word, span)


def _choice(old: str, new: str, span: Span) -> Choice:
    return Choice(message=f"replace `{old}` by `{new}`", edits=(Edit(text=new, span=span),))


def _calls(document: Document) -> list[ast.Call]:
    return [node for node in walk(document.tree.decls) if isinstance(node, ast.Call)]


def _text(document: Document, node: ast.Node) -> str:
    return document.text[node.span.start : node.span.end]


def _called(document: Document, call: ast.Call) -> Iterator[Choice]:
    """Yield the call that replaces one of another tool: `torch.minimum(a, b)`, `x.detach()`."""
    *before, last = call.function.parts
    form = replacements.CALLS.get(last)
    if form is None and before and last in builtins.FUNCTIONS:
        form = last
    if form is None or (any(arg.name is not None for arg in call.args) and "{" in form):
        return
    args = [_text(document, arg.value) for arg in call.args]
    if before and before[0] not in LIBRARIES:
        args.insert(0, ".".join(before))
    if len(args) == len(call.args) and "{" not in form:
        yield _choice(".".join((*before, last)), form, call.function.span)
        return
    if "{" not in form:
        made = f"{form}({', '.join(args)})"
    elif len(args) != len({*re.findall(r"{(\d)}", form)}):
        return
    elif '"' in form:
        if not re.fullmatch(r'"[\w\s,:;#<>/=!-]*"', args[1]):
            return
        made = form.format(args[0], args[1][1:-1])
    else:
        made = form.format(*args)
    yield _choice(_text(document, call), made, call.span)


# ---- settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A setting as it is written: its declaration (None outside of one), the path of the block in
    it, and the place of the statement. `addressed` is true in a profile."""

    node: ast.Assign
    decl: ast.BlockDecl | ast.BindDecl | None
    owner: str
    kind: str
    block: tuple[str, ...]
    addressed: bool


def _assign_at(document: Document, span: Span) -> Assigned | None:
    """Return the setting whose name contains a place."""
    for decl in document.tree.decls:
        if isinstance(decl, ast.Assign) and _within(span, decl.path.span):
            return Assigned(node=decl, decl=None, owner="", kind="", block=(), addressed=False)
        block = decl.block if isinstance(decl, ast.BlockDecl) else getattr(decl, "settings", None)
        if not isinstance(decl, ast.BlockDecl | ast.BindDecl) or block is None:
            continue
        if not _within(span, block.span):
            continue
        found = _assign_in(block, span, ())
        if found is None:
            return None
        node, path = found
        if isinstance(decl, ast.BlockDecl) and decl.kind == "profile":
            whole = (*path, *node.path.parts)
            return Assigned(
                node=node, decl=decl, owner=whole[0], kind=_schema(document, whole[0]),
                block=path[1:], addressed=True,
            )  # fmt: skip
        owner = _owner(decl)
        return Assigned(
            node=node, decl=decl, owner=owner, kind=_schema(document, owner),
            block=path, addressed=False,
        )  # fmt: skip
    return None


def _within(inner: Span, outer: Span) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


def _assign_in(
    block: ast.Block, span: Span, path: tuple[str, ...]
) -> tuple[ast.Assign, tuple[str, ...]] | None:
    for item in block.items:
        if isinstance(item, ast.Assign) and _within(span, item.path.span):
            return item, path
        if isinstance(item, ast.Nested) and _within(span, item.block.span):
            return _assign_in(item.block, span, (*path, item.name))
    return None


def _schema(document: Document, owner: str) -> str:
    """Return the name of the schema of a declaration: `titan` of a trainer."""
    definition = uses_of(document).top.get(owner)
    if definition is not None and definition.kind == "service":
        return names.owner_of(document, owner)
    kind = names.kind_of(document, owner)
    return "" if kind is None else kind.name


def _owner(decl: ast.BlockDecl | ast.BindDecl) -> str:
    """Return what a declaration is addressed by: its name, or its kind if there is one only."""
    kind = KINDS.get(decl.kind)
    return decl.kind if kind is not None and kind.singleton else decl.name or decl.kind


def _setting(document: Document, assigned: Assigned, name: str) -> Iterator[Choice]:
    """Yield the setting that replaces one of another tool, in the declarations that can have it."""
    if name in replacements.DRAWN:
        yield from _drawn(document, assigned)
        return
    target = replacements.SETTINGS.get(name)
    if target is None:
        return
    kinds = _kinds(*target) if target[0] else [assigned.kind]
    for kind in [assigned.kind] if assigned.kind in kinds else kinds:
        yield from _set(document, assigned, kind, target[1], name)


def _kinds(word: str, path: str) -> list[str]:
    """Return the schemas that a word of the table stands for and that have a setting."""
    if word not in _ROLES:
        return [word]
    services = (kind for kind in service_kinds() if _ROLES[word] in kind.can)
    return [kind.name for kind in services if kind.schema.setting(path) is not None]


def _set(
    document: Document, assigned: Assigned, kind: str, path: str, name: str = ""
) -> Iterator[Choice]:
    """Yield a setting in its own block: where the wrong one stands if that is in the declaration,
    else in each declaration of this kind. If it is set there already, that value changes."""
    schema = _SCHEMAS.get(kind)
    setting = None if schema is None else schema.setting(path)
    text = None if setting is None else _value(document, setting, assigned.node.value, name)
    if text is None:
        return
    node = assigned.node
    prefix = ".".join((*assigned.block, ""))
    if kind == assigned.kind and (assigned.addressed or path.startswith(prefix)):
        shown = path.removeprefix(prefix)
        if assigned.addressed and node.path.parts[0] == assigned.owner:
            shown = f"{assigned.owner}.{shown}"
        taken = _taken(assigned.decl, path)
        if path.startswith(prefix) and taken is None:
            new = f"{shown} = {text}"
            yield Choice(message=f"write `{new}`", edits=(Edit(text=new, span=node.span),))
            return
    if assigned.addressed:
        return
    for home in _homes(document, kind):
        gone, taken = removed(document.text, node.span), _taken(home.decl, path)
        edits = insert(document, home, f"{path} = {text}")
        if taken is not None:
            edits = (Edit(text=text, span=taken.value.span),)
        where = f"`{home.name}`" if home.name else f"a new block `{kind}`"
        yield Choice(message=f"move it to {where}: `{path} = {text}`", edits=(gone, *edits))


def _taken(decl: ast.BlockDecl | ast.BindDecl | None, path: str) -> ast.Assign | None:
    """Return where a declaration sets a path."""
    found = decl.block if isinstance(decl, ast.BlockDecl) else None
    return None if found is None else _set_in(found, path)


def _set_in(block: ast.Block, path: str) -> ast.Assign | None:
    for item in block.items:
        if isinstance(item, ast.Assign) and item.path.text == path:
            return item
        if isinstance(item, ast.Nested) and path.startswith(f"{item.name}."):
            found = _set_in(item.block, path.removeprefix(f"{item.name}."))
            if found is not None:
                return found
    return None


def _value(document: Document, setting: Setting, value: ast.Expr, name: str) -> str | None:
    """Return the text of a value for its new setting; None if it has no equivalent."""
    text = _text(document, value)
    bare = text.strip('"').removeprefix("torch.")
    if name in replacements.FORMS:
        return replacements.FORMS[name].format(value=text)
    if name in replacements.VALUES:
        return replacements.VALUES[name].get(bare)
    return bare if bare in setting.type.words else text


def _homes(document: Document, kind: str) -> list[Home]:
    """Return the declarations that have the settings of a schema; a block that is missing can be
    made."""
    found = [
        Home(name=_owner(decl), decl=decl)
        for decl in document.tree.decls
        if isinstance(decl, ast.BlockDecl)
        and decl.kind != "profile"
        and _schema(document, _owner(decl)) == kind
        and decl.block.items  # a frozen service has no settings
    ]
    if not found and kind in KINDS and KINDS[kind].singleton:
        found = [Home(name="", decl=None, kind=kind)]
    return found


def _drawn(document: Document, assigned: Assigned) -> Iterator[Choice]:
    """Yield the number of completions as an argument of each `sample` of the flow."""
    if assigned.addressed:
        return
    text = _text(document, assigned.node.value)
    gone = removed(document.text, assigned.node.span)
    for call in _calls(document):
        if call.function.parts[-1] != "sample" or len(call.function.parts) != 2:
            continue
        written = next((arg for arg in call.args if arg.name == "n"), None)
        end = Span(call.span.file, call.span.end - 1, call.span.end - 1)
        edit = (
            Edit(text=f", n = {text}", span=end)
            if written is None
            else Edit(text=text, span=written.value.span)
        )
        yield Choice(message=f"write `n = {text}` in `{call.function.text}`", edits=(gone, edit))
