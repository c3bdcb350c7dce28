"""Completion: `complete(document, offset) -> items`.

    tokens left of the cursor --context--> blocks, statement, call  --> settings, values, names, ...

All candidates are returned, whatever is typed already; editors and shells filter them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from forgedsl.hir.evaluate import show
from forgedsl.ide import field_types, fitting, names
from forgedsl.ide.context import Context, context, trailing_path
from forgedsl.ide.names import Name
from forgedsl.ide.paths import paths
from forgedsl.ide.signatures import of_member
from forgedsl.ide.uses import uses_of
from forgedsl.ide.workspace import Document
from forgedsl.records import dataclass
from forgedsl.schema import builtins
from forgedsl.schema.constructors import GYMNASIUM, JUDGE, PROGRAM, STANDARD_REWARDS
from forgedsl.schema.kinds import ALL_KINDS, FUNCTION_KINDS, KINDS, SERVICES, SYNC
from forgedsl.settings import Auto, Derived, Kind, Parameter, Required, Setting, Signature, Type
from forgedsl.source import Span
from forgedsl.syntax import ast

UNITS = {
    "duration": ("ms", "s", "min", "h", "d"),
    "interval": ("s", "min", "h", "d"),
    "bytes": ("KiB", "MiB", "GiB", "TiB"),
    "int": ("k", "M"),
}
"""units of values, by type of setting"""
_NUMBER = re.compile(r"(?<![\w.])([0-9][0-9_]*(?:\.[0-9]+)?)([A-Za-z]*)\Z")
_FIRST_TEXT = re.compile(r'\s*(?:id\s*=\s*|task\s*=\s*)?"([^"\n]*)"')
_ALLOW = re.compile(r"#\s*forge:\s*allow\[[^\]]*\Z")
_PROFILE_WORDS = ("when",)
PACKAGED = ("gymnasium", "reasoning_gym")
"""calls whose first argument names something of an installed package"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A candidate that replaces the text of `span`."""

    name: Name
    span: Span
    insert: str

    @property
    def label(self) -> str:
        return self.name.name


def complete(document: Document, offset: int) -> list[Item]:
    """Return all candidates at an offset. Their `span` is the part that is typed already."""
    where = context(document.text, offset)
    known = document.settled
    if where.inside != "code":
        found, start = _in_text(known, where, offset)
        return _items(document, found, start, offset)
    number = _NUMBER.search(document.text, max(offset - 40, 0), offset)
    if number is not None:
        return _items(document, _with_units(known, where, number[1]), number.start(), offset)
    return _items(document, _offered(known, where, offset), where.start, offset)


def values_of(document: Document, address: str) -> list[Name]:
    """Return the values of a setting given by its path: `trainer.device`."""
    owner, _, path = address.partition(".")
    kind = names.kind_of(document, owner)
    setting = None if kind is None else kind.setting(path or "value")
    return [] if setting is None else [*_of_type(document, setting.type, setting)]


def _items(document: Document, found: Iterable[Name], start: int, offset: int) -> list[Item]:
    span = Span(document.name, start, offset)
    unique: dict[str, Name] = {}
    for each in found:
        unique.setdefault(each.name, each)
    return [Item(name=each, span=span, insert=each.name) for each in unique.values() if each.name]


# ---- strings and comments


def _in_text(document: Document, where: Context, offset: int) -> tuple[list[Name], int]:
    """Complete codes in `# forge: allow[` and file names in strings; return where they begin."""
    if where.inside == "comment":
        if _ALLOW.match(where.literal):
            from forgedsl.explain.codes import pages

            typed = re.split(r"[\[,\s]", where.literal)[-1]
            found = [
                Name(name=page.code, kind="code", detail=page.name, doc=page.summary)
                for page in pages().values()
                if page.level != "E"
            ]
            return found, offset - len(typed)
        return [], offset
    typed = where.literal.lstrip('"')
    start = offset - len(typed)
    if where.call[-1:] and where.call[-1] in PACKAGED:
        return [*_packaged(where)], start
    return [*paths(where, document.folder, typed)], start


def _packaged(where: Context) -> Iterator[Name]:
    """Yield the names that an installed package knows, in the first argument of a call."""
    from forgedsl.hir import gymnasium_registry, reasoning_gym_registry

    if where.words[:1] not in ((), ("id",), ("task",)):
        return
    made = where.call[-1] == "reasoning_gym"
    known = reasoning_gym_registry.tasks() if made else gymnasium_registry.registered()
    for name in sorted(known or ()):
        yield Name(name=name, kind="value", detail="a task" if made else "an environment")


# ---- values with units


def _with_units(document: Document, where: Context, digits: str) -> Iterator[Name]:
    setting = _setting(document, where)
    base = "" if setting is None else setting.type.base
    for unit in UNITS.get(base, ()):
        yield Name(name=f"{digits}{unit}", kind="unit", detail=base)


# ---- code


def _offered(document: Document, where: Context, offset: int) -> Iterator[Name]:
    if where.words[-1:] == (".",):
        yield from _behind_dot(document, where, offset)
    elif field_types.expects(where):
        yield from field_types.offered(document, where)
    elif where.stack and where.stack[-1].bracket in "([":
        yield from _argument(document, where, offset)
    elif "=" in where.words:
        yield from _value(document, where, offset)
    elif not where.stack:
        yield from _top(document, where)
    else:
        yield from _statement(document, where, offset)


def _top(document: Document, where: Context) -> Iterator[Name]:
    """Complete the beginning of a declaration."""
    words = where.words
    if not words:
        for kind in ALL_KINDS:
            doc = KINDS[kind].doc if kind in KINDS else ""
            yield Name(name=kind, kind="keyword", detail="declaration", doc=doc)
        for word in ("import", "param", "require", "forge"):
            yield Name(name=word, kind="keyword")
        yield from names.declared(document, "import")
    elif words[0] == "require":
        yield from fitting.constants(document)
    elif words[0] == "import" and words[-1] == "import":
        yield Name(name="python", kind="keyword")
    elif words[0] == "profile" and "when" in words:
        yield from fitting.constants(document)
    elif words[0] == "profile" and len(words) == 2:
        yield Name(name="when", kind="keyword")
    elif len(words) == 1 and words[0] in KINDS:
        yield from (Name(name=label, kind="keyword") for label in KINDS[words[0]].labels)


def _kind_and_path(document: Document, where: Context) -> tuple[Kind | None, str, bool]:
    """Return the schema of the open block, the prefix of its settings, and True if the cursor is
    directly in a profile, where a declaration is named next."""
    kind: Kind | None = None
    prefix: list[str] = []
    in_profile = False
    for head in where.blocks:
        first = head[0] if head else ""
        if kind is not None:
            prefix += [word for word in head if word != "."]
        elif first == "profile":
            in_profile = True
        elif first == "service" and ":" in head:
            kind = SERVICES.get((*head, "")[head.index(":") + 1])
        elif first == "sync":
            kind = SYNC
        elif first in KINDS and (KINDS[first].singleton or (len(head) > 1 and not in_profile)):
            kind = KINDS[first]
        elif first in uses_of(document).imports:
            in_profile = True
        else:
            kind = names.kind_of(document, first)
            prefix += [word for word in head[1:] if word not in (".", "()")] if kind else []
    path = ".".join(prefix)
    return kind, f"{path}." if path else "", in_profile and kind is None


def function_block(where: Context) -> tuple[str, ...]:
    """Return the header of the function or flow whose body contains the cursor."""
    for head in where.blocks:
        if head[:1] in (("flow",), ("loss",), ("advantage",), ("filter",), ("fn",)):
            return head
        if head[:1] == ("reward",) and "=" not in head:
            return head
    return ()


def _statement(document: Document, where: Context, offset: int) -> Iterator[Name]:
    """Complete the beginning of an item of a block."""
    head = function_block(where)
    if head[:1] == ("flow",) and len(where.blocks) == 1:
        if not where.words:
            yield Name(name="sync", kind="keyword", detail="sync trainer -> generator")
            yield from names.declared(document, "service", "dataset", "buffer")
        elif where.words[0] == "sync":
            yield from names.declared(document, "service")
        return
    if head and head[0] != "flow":
        if where.words[:1] == ("report",) and len(where.words) == 1:
            return
        if where.words:
            yield from _expression(document, where, offset)
            return
        words = ("minimize", "report") if head[0] == "loss" else ("return",)
        yield from (Name(name=word, kind="keyword") for word in words)
        return
    kind, prefix, is_open = _kind_and_path(document, where)
    if is_open:
        hidden = {"import", "profile", "flow", "loss", "advantage", "filter", "fn"}
        yield from (n for n in names.declared(document) if n.kind not in hidden)
        for name, each in (*KINDS.items(), (SYNC.name, SYNC)):
            if each.singleton or each is SYNC:
                yield Name(name=name, kind="keyword", detail="block", doc=each.doc)
    elif kind is not None and not where.words:
        yield from names.settings_under(kind, prefix)


def _setting(document: Document, where: Context) -> Setting | None:
    """Return the setting whose value is at the cursor."""
    words = where.words
    if "=" in words and (not where.stack or where.stack[-1].bracket == "{"):
        path = [word for word in words[: words.index("=")] if word != "."]
    else:  # the value is in a list or in parentheses
        heads = [o.head for o in where.stack if o.bracket in "([" and "=" in o.head]
        if not heads:
            return None
        path = [word for word in heads[0][: heads[0].index("=")] if word != "."]
    kind, prefix, is_open = _kind_and_path(document, where)
    if (is_open or not where.blocks) and path:
        kind, path = names.kind_of(document, path[0]), path[1:]
        if kind is not None and kind.single:
            path = ["value"]
    return None if kind is None else kind.setting(prefix + ".".join(path))


def _value(document: Document, where: Context, offset: int) -> Iterator[Name]:
    """Complete the right side of `=`."""
    head = function_block(where)
    if head[:1] == ("flow",):
        yield from names.declared(document, "service", "dataset", "buffer", "rubric", "reward")
        yield from names.declared(document, "advantage", "filter", "import")
        if where.words[:1] == ("adv",):
            yield from _qualified(document, "advantage")
        yield from names.statements()
        yield from _streams(document, offset)
        return
    setting = None if head else _setting(document, where)
    if setting is None:
        if where.words[:1] == ("reward",):
            yield from _qualified(document, "reward", "python")
        yield from _expression(document, where, offset)
        return
    yield from _of_type(document, setting.type, setting)
    if setting.type.base == "deferred":
        yield from _expression(document, where, offset)
    elif setting.type.base == "word":
        yield from fitting.params(document, setting.type)
    elif setting.type.base != "ref":
        yield from fitting.constants(document, setting.type)


def _of_type(document: Document, type_: Type, setting: Setting | None = None) -> Iterator[Name]:
    """Return the values of a type."""
    doc = "" if setting is None else names.setting_doc(setting)
    for word in type_.words:
        yield Name(name=word, kind="value", doc=doc)
    if type_.base == "bool":
        yield from (Name(name=word, kind="value", doc=doc) for word in ("true", "false"))
    if type_.auto:
        yield Name(name="auto", kind="value", detail="the plan decides", doc=doc)
    if type_.optional:
        yield Name(name="none", kind="value", doc=doc)
    for sig in type_.ctors.values():
        yield _constructor(sig)
    if type_.base == "ref":
        yield from names.declared(document, *type_.kinds)
    if type_.base == "loss":
        yield from _losses(document)
    if type_.item is not None:
        yield from _of_type(document, type_.item)
    if setting is not None and not isinstance(setting.default, Required | Derived | Auto):
        default = setting.default
        if type_.base in ("int", "float", "duration", "interval", "bytes") and default is not None:
            yield Name(name=show(default, type_.base), kind="value", detail="the default", doc=doc)


def _constructor(sig: Signature) -> Name:
    params = ", ".join(p.name for p in sig.params)
    return Name(name=sig.name, kind="constructor", detail=f"{sig.name}({params})", doc=sig.doc)


def _losses(document: Document) -> Iterator[Name]:
    yield from names.declared(document, "loss")
    yield from _qualified(document, "loss")


def _qualified(document: Document, *kinds: str) -> Iterator[Name]:
    """Return names of these kinds in imported modules: `rl.dapo`."""
    for alias in uses_of(document).imports:
        for member in names.members(document, alias):
            if member.kind in kinds:
                yield Name(
                    name=f"{alias}.{member.name}", kind=member.kind, detail=member.detail,
                    doc=member.doc,
                )  # fmt: skip


# ---- calls


def _argument(document: Document, where: Context, offset: int) -> Iterator[Name]:
    """Complete an argument of a call, or an item of a list."""
    call = where.call
    header = where.stack[-1].head
    if header[:1] in {(kind,) for kind in FUNCTION_KINDS} and len(header) == 2:
        yield from _fields(header[0], where)
        return
    if header[:1] == ("service",) and ":" in header:
        yield from names.declared(document, "model")
        yield Name(name="value_head", kind="constructor", detail="value_head(MODEL)")
        return
    if not where.words:
        yield from _parameters(document, where, call, offset)
    in_flow = function_block(where)[:1] == ("flow",)
    named = where.words[0] if where.words[1:2] == ("=",) else ""
    if in_flow:
        if named == "loss":
            yield from _losses(document)
        elif named == "env":
            yield from names.declared(document, "environment")
        elif named in fitting.WANTED:
            kinds = tuple(kind for kind in fitting.WANTED[named] if kind != "python")
            yield from names.declared(document, *kinds)
            yield from _qualified(document, *kinds)
            if named != "weight":
                yield from _streams(document, offset)
        else:
            yield from _streams(document, offset)
            yield from names.declared(
                document, "param", "advantage", "filter", "rubric", "reward", "service", "import"
            )
        return
    sig = signature_at(document, where)
    parameter = None
    if sig is not None:
        at = [p for p in sig.params if p.name == named] or [*sig.params][:1]
        parameter = at[0] if at else None
    if parameter is not None:
        yield from _of_type(document, parameter.type)
    setting = None if function_block(where) else _setting(document, where)
    if setting is not None and where.stack[-1].bracket == "[":
        yield from _of_type(document, setting.type, setting)
    if sig is None and (setting is None or setting.type.base == "deferred"):
        yield from _expression(document, where, offset)
    else:
        yield from names.declared(document, "param")


def _fields(kind: str, where: Context) -> Iterator[Name]:
    """Return names of fields with a fixed meaning."""
    if where.words or kind != "loss":
        return
    from forgedsl.reference.expressions import FIELDS

    for name, type_ in builtins.FIELD_TYPES.items():
        yield Name(name=name, kind="field", detail=type_, doc=FIELDS.get(name, ""))


def signature_at(document: Document, where: Context) -> Signature | None:
    """Return the constructor whose arguments are at the cursor."""
    call = where.call
    if not call:
        return None
    setting = None if function_block(where) else _setting(document, where)
    if setting is not None:
        ctors = setting.type.ctors or (setting.type.item.ctors if setting.type.item else {})
        if call[-1] in ctors:
            return ctors[call[-1]]
    for signature in (PROGRAM, GYMNASIUM):
        if call == (signature.name,):
            return signature
    if len(call) == 2 and call[0] in uses_of(document).imports:
        return STANDARD_REWARDS.get(call[1])
    definition = uses_of(document).top.get(call[0])
    is_judge = definition is not None and definition.kind == "service"
    return JUDGE if is_judge and call[1:] == (JUDGE.name,) else None


def packaged_parameters(text: str, call: str, offset: int) -> Iterable[Parameter]:
    """Return the arguments of the task or environment that the first argument of a call names."""
    opened = text.rfind(f"{call}(", 0, offset)
    first = _FIRST_TEXT.match(text, opened + len(call) + 1, offset)
    if call not in PACKAGED or opened < 0 or first is None:
        return ()
    from forgedsl.hir import gymnasium_registry, reasoning_gym_registry

    if call == "reasoning_gym":
        config = reasoning_gym_registry.config_of(first[1])
        return () if config is None else config.params
    entry = (gymnasium_registry.registered() or {}).get(first[1])
    return () if entry is None else gymnasium_registry.described(entry).params or ()


def _parameters(
    document: Document, where: Context, call: tuple[str, ...], offset: int
) -> Iterator[Name]:
    """Return `name = ` for the parameters of a call."""
    if not call:
        return
    sig = signature_at(document, where)
    if sig is not None:
        for parameter in (*sig.params, *packaged_parameters(document.text, call[-1], offset)):
            detail = parameter.type.text
            yield Name(name=parameter.name, kind="argument", detail=detail, doc=sig.doc)
        return
    if len(call) == 2:
        for form in names.flow_forms(document, call[0]):
            if form.method == call[1]:
                for name in form.params:
                    yield Name(name=name, kind="argument", detail=f"of {call[1]}", doc=form.doc)
        for member in names.members(document, call[0]):
            if member.name == call[1]:
                for name in re.findall(r"(\w+): ", member.detail):
                    yield Name(name=name, kind="argument", detail=f"of {call[1]}", doc=member.doc)
        yield from _python_parameters(document, *call)
        return
    definition = uses_of(document).top.get(call[0])
    if definition is not None and isinstance(definition.node, ast.FnDecl):
        for field in definition.node.fields:
            yield Name(name=field.name, kind="argument", detail=names.signature(field))


def _python_parameters(document: Document, alias: str, name: str) -> Iterator[Name]:
    """Return the parameters of a Python function or class that is imported as `alias.name`."""
    if isinstance(uses_of(document).imports.get(alias), ast.ImportPython):
        found = of_member(document, alias, name)
        if found is None:
            return
        for each in found.parameters:
            yield Name(name=each.name, kind="argument", detail=each.text, doc=found.doc)


# ---- expressions


def _expression(document: Document, where: Context, offset: int) -> Iterator[Name]:
    """Return the names of the expression language that are visible at a place."""
    yield from _locals(document, offset)
    if _dataset(where):
        yield Name(name="row", kind="variable", detail="a row of the source")
        yield Name(name="system", kind="variable", detail="the dataset's system message")
    yield from names.declared(document, "param", "fn", "import", "loss", "advantage", "reward")
    yield from names.builtin_names()
    yield from (Name(name=axis, kind="axis") for axis in sorted(builtins.AXES))
    yield from (Name(name=word, kind="keyword") for word in ("if", "else", "and", "or", "not",
                                                            "true", "false", "none"))  # fmt: skip


def _locals(document: Document, offset: int) -> Iterator[Name]:
    """Return the parameters and locals of the enclosing function, up to the cursor."""
    for decl in document.tree.decls:
        if isinstance(decl, ast.FnDecl) and decl.span.start <= offset <= decl.span.end + 1:
            for field in decl.fields:
                yield Name(name=field.name, kind="field", detail=names.signature(field))
            if isinstance(decl.body, ast.Block):
                for item in decl.body.items:
                    if item.span.end < offset and isinstance(item, ast.Assign):
                        yield Name(name=item.path.text, kind="local")
                    elif item.span.end < offset and isinstance(item, ast.TypedAssign):
                        yield Name(name=item.name, kind="local")


def _streams(document: Document, offset: int) -> Iterator[Name]:
    """Return the streams of the flow that are defined before a place."""
    for decl in document.tree.decls:
        if isinstance(decl, ast.BlockDecl) and decl.kind == "flow":
            for item in decl.block.items:
                if isinstance(item, ast.Assign) and item.span.end < offset:
                    yield Name(name=item.path.parts[0], kind="stream", detail="stream")


def _dataset(where: Context) -> str:
    """Return the name of the enclosing dataset, also inside of a profile."""
    for head in where.blocks:
        if head[:1] == ("dataset",) and len(head) > 1:
            return head[1]
    return ""


def _behind_dot(document: Document, where: Context, offset: int) -> Iterator[Name]:
    """Complete after `a.b.`."""
    path = trailing_path(where.words[:-1])
    if not path:
        return
    first = path[0]
    if first == "row" and _dataset(where):
        yield from names.columns(document, _dataset(where))
        return
    if first in uses_of(document).imports and len(path) == 1:
        kinds = fitting.wanted(where, function_block(where)[:1] == ("flow",))
        members = names.members(document, first)
        yield from (name for name in members if kinds is None or name.kind in kinds)
        return
    head = function_block(where)
    if head[:1] == ("flow",):
        is_stream = first not in uses_of(document).top
        if not (is_stream and where.call):  # an argument is a stream or an attribute
            yield from (names.method(f) for f in names.flow_forms(document, first) if f.method)
        if is_stream:
            yield from fitting.stream_attributes(document, first, offset)
        return
    if _is_rollout(document, first, offset):
        yield from _reward_parts(document) if path[1:] == ("rewards",) else _attributes()
        return
    kind, prefix, is_open = _kind_and_path(document, where)
    is_path = "=" not in where.words and (not where.stack or where.stack[-1].bracket == "{")
    if is_path and kind is not None and not is_open:
        yield from names.settings_under(kind, f"{prefix}{'.'.join(path)}.")
        return
    kind = names.kind_of(document, first)
    if kind is not None:
        rest = ".".join(path[1:])
        yield from names.settings_under(kind, f"{rest}." if rest else "")


def _attributes() -> Iterator[Name]:
    from forgedsl.reference.expressions import MEANINGS

    for name in builtins.ROLLOUT_ATTRIBUTES:
        yield Name(name=name, kind="attribute", detail="of a rollout", doc=MEANINGS.get(name, ""))


def _reward_parts(document: Document) -> Iterator[Name]:
    """Return the reward parts of all environments."""
    program = document.settled.program
    for env in program.environments.values() if program is not None else ():
        for part in env.body.parts:
            yield Name(name=part, kind="attribute", detail=f"of environment {env.name}")


def _is_rollout(document: Document, name: str, offset: int) -> bool:
    for decl in document.tree.decls:
        if isinstance(decl, ast.FnDecl) and decl.span.start <= offset <= decl.span.end + 1:
            for field in decl.fields:
                if field.name == name:
                    return isinstance(field.type, ast.NamedType) and field.type.name == "Rollout"
    return False
