"""Names that can be used in a text, with their settings, members, methods and columns.

Declarations are looked up in the syntax tree, which is available for incomplete texts; members of
modules are looked up in the program, as far as it can be resolved.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forgedsl import api
from forgedsl.ide.uses import Definition, module_path, uses_of
from forgedsl.ide.workspace import Document
from forgedsl.ir.program import Constructor, Function, Scope
from forgedsl.lint.some_rows import some_rows
from forgedsl.operations.registry import forms
from forgedsl.operations.statements import Form
from forgedsl.records import dataclass
from forgedsl.schema import builtins
from forgedsl.schema.constructors import STANDARD_REWARDS
from forgedsl.schema.kinds import KINDS, SERVICES, SYNC
from forgedsl.settings import Kind, Setting
from forgedsl.shipped import locate
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name. `kind` is the kind of declaration, or function, builtin, column, field, method,
    setting, ... Editors show `detail` beside it and `doc` below."""

    name: str
    kind: str
    detail: str = ""
    doc: str = ""


# ---- kinds of declared names


def kind_of(document: Document, name: str) -> Kind | None:
    """Return the schema of a declaration, or of a singleton kind."""
    definition = uses_of(document).top.get(name)
    if definition is None:
        found = KINDS.get(name)
        if name == SYNC.name:
            return SYNC
        return found if found is not None and found.singleton else None
    node = definition.node
    if isinstance(node, ast.BlockDecl) and node.kind == "service":
        called = node.ctor.function.text if isinstance(node.ctor, ast.Call) else ""
        return SERVICES.get(called)
    return KINDS.get(getattr(node, "kind", ""))


def declared(document: Document, *kinds: str) -> Iterator[Name]:
    """Return the declarations of the file of these kinds; all if no kinds are given."""
    for definition in uses_of(document).top.values():
        if not kinds or definition.kind in kinds:
            yield name_of(definition)


def name_of(definition: Definition) -> Name:
    """Convert a definition to a Name."""
    node = definition.node
    return Name(
        name=definition.name,
        kind=definition.kind,
        detail=signature(node) or definition.kind,
        doc=getattr(node, "doc", ""),
    )


def signature(node: Any) -> str:
    """Return the first line of a declaration."""
    from forgedsl.format.expressions import Expressions
    from forgedsl.format.notes import Notes

    printer = Expressions(Notes(None))
    match node:
        case ast.Param():
            default = "" if node.default is None else f" = {printer.flat(node.default)}"
            return f"param {node.name} : {printer.type(node.type)}{default}"
        case ast.FnDecl():
            fields = ", ".join(f"{f.name}: {printer.type(f.type)}" for f in node.fields)
            result = "" if node.result is None else f" -> {printer.type(node.result)}"
            return f"{node.kind} {node.name}({fields}){result}"
        case ast.BindDecl():
            return f"{node.kind} {node.name} = {printer.flat(node.value)}"
        case ast.BlockDecl():
            ctor = "" if node.ctor is None else f" : {printer.flat(node.ctor)}"
            return f"{node.kind} {node.name or ''}{ctor}".rstrip()
        case ast.Field():
            default = "" if node.default is None else f" = {printer.flat(node.default)}"
            return f"{node.name} : {printer.type(node.type)}{default}"
        case ast.ImportForge():
            return f'import "{node.target}"'
        case ast.ImportPython():
            return f'import python "{node.target}"'
    return ""


# ---- settings


def settings_under(kind: Kind, prefix: str) -> Iterator[Name]:
    """Return what may follow `prefix` ("" or "optimizer.") in the name of a setting."""
    seen = set()
    for setting in kind.settings:
        if kind.single or not setting.name.startswith(prefix):
            continue
        first, _, rest = setting.name[len(prefix) :].partition(".")
        if first in seen:
            continue
        seen.add(first)
        if rest:
            yield Name(name=first, kind="block", detail="a block of settings")
        else:
            yield Name(
                name=first, kind="setting", detail=setting.type.text, doc=setting_doc(setting)
            )
    for opened in kind.open:
        first = opened[len(prefix) :].partition(".")[0] if opened.startswith(prefix) else ""
        if first and first not in seen:
            yield Name(name=first, kind="block", detail="passed on unchanged")


IMPACT = {
    "numerics": "Changes what is computed.",
    "placement": "Changes where it runs, not what is computed.",
    "observability": "Changes what is logged or saved, not what is computed.",
}


def setting_doc(setting: Setting) -> str:
    """Return meaning, default and effect of a setting, as Markdown."""
    from forgedsl.reference.settings import default_text

    default = default_text(setting)
    return f"{setting.doc}\n\n*Default*: {default}. {IMPACT[setting.impact]}"


# ---- members


def members(document: Document, alias: str) -> Iterator[Name]:
    """Return what may follow `alias.`: names of a module, of the library, or of a Python file."""
    decl = uses_of(document).imports.get(alias)
    path = module_path(document, alias)
    if decl is None or path is None:
        return
    if isinstance(decl, ast.ImportForge) and not decl.target.startswith("std/"):
        module = document.workspace.document(path)
        hidden = {"import", "eval"}
        yield from (n for n in declared(module) if n.kind not in hidden)
        return
    if isinstance(decl, ast.ImportForge):
        yield from standard_names(decl.target)
        return
    program = document.program
    scope = program.scope.names.get(alias) if program is not None else None
    if isinstance(scope, Scope):
        for name, found in scope.names.items():
            yield Name(name=name, kind="python", detail=type(found).__name__.removeprefix("Python"))


@functools.cache
def standard_names(module: str) -> tuple[Name, ...]:
    """Return the names of a module of the standard library."""
    functions, _ = api.load_functions(module)
    found = [
        Name(name=name, kind=f.kind, detail=_of_function(f), doc=f.doc)
        for name, f in functions.items()
    ]
    rewards = STANDARD_REWARDS.items() if module == "std/rl" else ()
    for name, sig in rewards:
        params = ", ".join(p.name for p in sig.params)
        found.append(Name(name=name, kind="reward", detail=f"{name}({params})", doc=sig.doc))
    return tuple(found)


def _of_function(function: Function) -> str:
    from forgedsl.format.expressions import Expressions
    from forgedsl.format.notes import Notes

    printer = Expressions(Notes(None))
    fields = ", ".join(f"{f.name}: {printer.type(f.type)}" for f in function.fields)
    result = "" if function.result is None else f" -> {printer.type(function.result)}"
    return f"{function.kind} {function.name}({fields}){result}"


# ---- the flow


def flow_forms(document: Document, name: str) -> Iterator[Form]:
    """Return the methods of a declaration or of a stream of the flow."""
    yield from (form for _, form in forms(owner_of(document, name)) if form.owner != "")


def owner_of(document: Document, name: str) -> str:
    """Return what has the methods of a name in the flow: a kind of declaration or service, or
    `stream`."""
    definition = uses_of(document).top.get(name)
    if definition is None:
        return "stream"
    node = definition.node
    if isinstance(node, ast.BlockDecl) and node.kind == "service":
        return node.ctor.function.text if isinstance(node.ctor, ast.Call) else ""
    return definition.kind


def statements() -> Iterator[Name]:
    """Return the words that begin a call in the flow."""
    for _, form in forms(""):
        if form.method:
            yield Name(name=form.method, kind="method", detail=form.shown, doc=form.doc)


def method(form: Form) -> Name:
    """Return a method of the flow."""
    shown = form.shown or f"{form.method}({', '.join(form.params)})"
    return Name(name=form.method, kind="method", detail=shown, doc=form.doc)


# ---- expressions


@functools.cache
def builtin_names() -> tuple[Name, ...]:
    """Return the functions of the expression language."""
    from forgedsl.reference.expressions import MEANINGS

    return tuple(
        Name(
            name=name,
            kind="builtin",
            detail=f"{name}({', '.join(params)})",
            doc=MEANINGS.get(name, ""),
        )
        for name, params in builtins.FUNCTIONS.items()
    )


# ---- columns of data


def columns(document: Document, dataset: str) -> Iterator[Name]:
    """Return the columns of a local or shipped dataset, under any profile, with an example value.
    Nothing is downloaded."""
    found: dict[str, Name] = {}
    for profile in ("none", *document.profiles):
        program = document.state(profile).program
        decl = None if program is None else program.datasets.get(dataset)
        source = None if decl is None else decl.settings["source"].value
        for made in _sources(source):
            if isinstance(path := made.args.get("path"), str):
                for name, example in _columns(locate(path, document.folder)).items():
                    found.setdefault(name, Name(name=name, kind="column", detail=example))
    yield from found.values()


def _sources(source: Any) -> Iterator[Constructor]:
    if isinstance(source, Constructor):
        yield source
        for each in source.args.get("sources", ()):
            yield from _sources(each)


def _columns(path: Path) -> Mapping[str, str]:
    """Return the columns of a file with the first value of each; {} if it cannot be read."""
    try:
        stamp = path.stat().st_mtime_ns
        return _read_columns(path, stamp)
    except (OSError, ValueError):
        return {}


@functools.lru_cache(maxsize=64)
def _read_columns(path: Path, stamp: int) -> Mapping[str, str]:
    if path.suffix == ".parquet":
        return _parquet(path)
    form = path.suffix[1:] if path.suffix in (".csv", ".json") else "jsonl"
    found: dict[str, str] = {}
    for row in some_rows(path, form):
        for name, value in row.items():
            shown = json.dumps(value, ensure_ascii=False)
            found.setdefault(name, shown if len(shown) <= 60 else f"{shown[:57]}...")
    return found


def _parquet(path: Path) -> Mapping[str, str]:
    try:
        from pyarrow.parquet import read_schema
    except ImportError:
        return {}
    return {field.name: str(field.type) for field in read_schema(path)}
