"""Finds the definitions and uses of names in a text, in one walk over its tree.

    Document -> Uses: definitions, and the places that name them

A file has one namespace. Functions and the flow have local names, which are defined once and in
order. `m.NAME` refers to a declaration of another file. Settings, columns and methods are not
included.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from forgedsl.hir.collect import alias_of
from forgedsl.hir.modules import standard_path
from forgedsl.hir.table import part_span
from forgedsl.ide.workspace import Document, real_path
from forgedsl.operations.draw import GIVEN
from forgedsl.records import dataclass, fields
from forgedsl.schema import builtins
from forgedsl.schema.constructors import STANDARD_REWARDS
from forgedsl.source import Span
from forgedsl.syntax import ast

PROTOCOL = frozenset({"loss", "advantage", "filter"})
"""kinds of functions whose parameters are bound by name to tensors of trainer, rollout or flow"""
_AS = re.compile(r"[ \t]*(?:\([^()]*\))?[ \t]*as[ \t]+([A-Za-z_]\w*)")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A definition of a name. `kind` is the kind of declaration, or param, import, profile, field
    (a parameter of a function), local or stream (a name of the flow). `node` is its syntax node."""

    name: str
    span: Span
    kind: str
    node: Any
    of: str = ""
    """for a field, the kind of its function"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A use of a name of this file, or, as `alias.NAME`, of another file."""

    span: Span
    definition: Definition | None = None
    alias: str = ""
    member: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A span in a text."""

    path: Path
    span: Span


class RenameError(Exception):
    """The name cannot be changed; the message says why."""


class Uses:
    """All definitions and uses of a text."""

    def __init__(self, document: Document) -> None:
        self.uses: list[Use] = []
        self.top: dict[str, Definition] = {}
        self.imports: dict[str, ast.ImportForge | ast.ImportPython] = {}
        walk = _Walk(document, self)
        walk.file(document.tree)
        self.uses.sort(key=lambda use: (use.span.start, use.span.end))

    def at(self, offset: int) -> Use | None:
        """Return the use that contains an offset or ends there."""
        found = [u for u in self.uses if u.span.start <= offset <= u.span.end]
        return found[-1] if found else None

    def of(self, definition: Definition) -> list[Span]:
        """Return the spans of a name, its definition included."""
        spans = {use.span for use in self.uses if use.definition is definition}
        return sorted(spans, key=lambda span: span.start)

    def definitions(self) -> Iterator[Definition]:
        """Return all definitions of the text."""
        return iter({id(u.definition): u.definition for u in self.uses if u.definition}.values())


class _Walk:
    """Walks a tree. `scope` holds the local names."""

    def __init__(self, document: Document, found: Uses) -> None:
        self.document = document
        self.text = document.text
        self.found = found
        self.scope: dict[str, Definition] = {}
        self.fields: dict[Span, Definition] = {}

    # ---- what is noted

    def define(self, name: str, span: Span, kind: str, node: Any, of: str = "") -> Definition:
        made = Definition(name=name, span=span, kind=kind, node=node, of=of)
        self.found.uses.append(Use(span=span, definition=made))
        return made

    def use(self, name: str, span: Span) -> Definition | None:
        definition = self.scope.get(name) or self.found.top.get(name)
        if definition is not None:
            self.found.uses.append(Use(span=span, definition=definition))
        return definition

    def path(self, path: ast.Path) -> None:
        """Record a dotted name: its first part, and the second if the first is an imported file."""
        definition = self.use(path.parts[0], part_span(path, 0, 0))
        if definition is not None and definition.kind == "import" and len(path.parts) > 1:
            span, member = part_span(path, 1, 1), path.parts[1]
            self.found.uses.append(Use(span=span, alias=path.parts[0], member=member))

    # ---- a file

    def file(self, file: ast.File) -> None:
        for decl in file.decls:
            self._enter(decl)
            if isinstance(decl, ast.FnDecl):
                for field in decl.fields:
                    made = self.define(field.name, field.name_span, "field", field, of=decl.kind)
                    self.fields[field.name_span] = made
        for decl in file.decls:
            self.scope = {}
            self.visit(decl)

    def _enter(self, decl: ast.Decl) -> None:
        """Record the definition of a declaration's name, and enter it in the namespace."""
        match decl:
            case ast.ImportForge() | ast.ImportPython():
                alias = alias_of(decl)
                match = _AS.match(self.text, decl.target_span.end)
                span = decl.target_span if match is None else self._span(*match.span(1))
                self.found.imports[alias] = decl
                made = self.define(alias, span, "import", decl)
            case ast.Param():
                made = self.define(decl.name, decl.name_span, "param", decl)
            case ast.FnDecl() | ast.BindDecl():
                made = self.define(decl.name, decl.name_span, decl.kind, decl)
            case ast.BlockDecl() if decl.name and decl.name_span and decl.kind != "schedule":
                made = self.define(decl.name, decl.name_span, decl.kind, decl)
                if decl.kind in ("profile", "flow"):
                    return  # its name is never referred to in the text
            case _:
                return
        self.found.top.setdefault(made.name, made)

    def _span(self, start: int, end: int) -> Span:
        return Span(self.document.name, start, end)

    # ---- nodes

    def visit(self, node: Any) -> None:
        if isinstance(node, tuple):
            for each in node:
                self.visit(each)
        elif isinstance(node, ast.Node):
            self.node(node)

    @singledispatchmethod
    def node(self, node: Any) -> None:
        for field in fields(type(node)):
            self.visit(getattr(node, field.name))

    @node.register
    def _(self, node: ast.Path) -> None:
        self.path(node)

    @node.register
    def _(self, node: ast.Arg) -> None:
        self.visit(node.value)

    @node.register
    def _(self, node: ast.Call) -> None:
        self.path(node.function)
        definition = None
        if len(node.function.parts) == 1:
            name = node.function.parts[0]
            definition = self.scope.get(name) or self.found.top.get(name)
        for arg in node.args:
            if arg.name is not None and definition and isinstance(definition.node, ast.FnDecl):
                self._keyword(arg, definition.node)
            self.visit(arg.value)

    def _keyword(self, arg: ast.Arg, function: ast.FnDecl) -> None:
        """Record a keyword argument, which names a parameter of a function of the file."""
        for field in function.fields:
            made = self.fields.get(field.name_span)
            if made is not None and field.name == arg.name:
                span = self._span(arg.span.start, arg.span.start + len(made.name))
                self.found.uses.append(Use(span=span, definition=made))

    @node.register(ast.NamedType)
    @node.register(ast.GenericType)
    @node.register(ast.ImportPython)
    def _(self, node: Any) -> None:
        return

    @node.register
    def _(self, node: ast.ImportForge) -> None:
        for arg in node.args:
            if arg.name is not None:
                span = self._span(arg.span.start, arg.span.start + len(arg.name))
                use = Use(span=span, alias=alias_of(node), member=arg.name)
                self.found.uses.append(use)
            self.visit(arg.value)

    @node.register
    def _(self, node: ast.TensorType) -> None:
        self.visit(node.axes)

    @node.register
    def _(self, node: ast.FnDecl) -> None:
        inner: dict[str, Definition] = {}
        for field in node.fields:
            self.visit((field.type, field.default))
            inner[field.name] = self.fields[field.name_span]
        self.visit(node.result)
        self.scope = inner
        if isinstance(node.body, ast.Block):
            self.body(node.body.items, "local")
        else:
            self.visit(node.body)
        self.scope = {}
        self.visit(node.settings)

    @node.register
    def _(self, node: ast.BlockDecl) -> None:
        if node.kind == "flow":
            self.body(node.block.items, "stream")
            return
        self.visit(node.when)
        self.visit(node.ctor)
        if node.kind == "profile":
            for item in node.block.items:
                self._of_profile(item)
            return
        if node.name is None:
            self.use(node.kind, node.kind_span)  # `m { generator { ... } }`
        self.settings(node.block.items)

    @node.register
    def _(self, node: ast.Block) -> None:
        self.settings(node.items)

    @node.register
    def _(self, node: ast.Assign) -> None:
        self.path(node.path)
        self.visit(node.value)

    def _of_profile(self, item: ast.Item) -> None:
        """Record an item of a profile, which begins with the name of a declaration."""
        if isinstance(item, ast.Nested):
            self.use(item.name, item.name_span)
            self.visit(item.when)
            self.settings(item.block.items)
        else:
            self.visit(item)

    def settings(self, items: Iterable[ast.Item]) -> None:
        """Walk items whose left sides are settings."""
        for item in items:
            if isinstance(item, ast.Assign):
                self.visit(item.value)
            elif isinstance(item, ast.Nested):
                self.visit(item.when)
                self.settings(item.block.items)
            else:
                self.visit(item)

    def body(self, items: Iterable[ast.Item], kind: str) -> None:
        """Walk the statements of a function or of the flow."""
        for item in items:
            match item:
                case ast.Assign():
                    self.visit(item.value)
                    name = item.path.parts[0]
                    self.scope[name] = self.define(name, part_span(item.path, 0, 0), kind, item)
                case ast.TypedAssign():
                    self.visit((item.type, item.value))
                    start = item.span.start
                    span = self._span(start, start + len(item.name))
                    self.scope[item.name] = self.define(item.name, span, kind, item)
                case ast.Sync():
                    self.visit((item.source, item.target))
                    if item.block is not None:
                        self.settings(item.block.items)
                case _:
                    self.visit(item)


# ---- across files


def uses_of(document: Document) -> Uses:
    """Return the uses of a text; cached."""
    found: Uses = document.kept("uses", lambda: Uses(document))
    return found


def module_path(document: Document, alias: str) -> Path | None:
    """Return the file that an import names, if there is one."""
    decl = uses_of(document).imports.get(alias)
    if decl is None:
        return None
    if isinstance(decl, ast.ImportPython):
        return document.folder / decl.target
    if decl.target.startswith("std/"):
        return standard_path(decl.target)
    path = document.folder / decl.target
    return path if path.suffix == ".forge" else path.with_name(f"{path.name}.forge")


def definition_at(document: Document, offset: int) -> Place | None:
    """Return the place of the declaration of the name at an offset."""
    use = uses_of(document).at(offset)
    if use is None:
        return _imported_file(document, offset)
    if use.definition is not None:
        if use.definition.kind == "import" and use.span != use.definition.span:
            return Place(path=document.path, span=use.definition.span)
        return Place(path=document.path, span=use.definition.span)
    found = _member(document, use)
    return None if found is None else Place(path=found[0].path, span=found[1].span)


def _imported_file(document: Document, offset: int) -> Place | None:
    """Return the start of the imported file whose name is at the offset."""
    for alias, decl in uses_of(document).imports.items():
        if decl.target_span.start <= offset <= decl.target_span.end:
            path = module_path(document, alias)
            if path is not None and (path.is_file() or document.workspace.text(path)):
                return Place(path=path, span=Span(str(path), 0, 0))
    return None


def _member(document: Document, use: Use) -> tuple[Document, Definition] | None:
    """Return the place of `alias.NAME` in its own file."""
    path = module_path(document, use.alias)
    if path is None:
        return None
    if path.suffix == ".py":
        return python_definition(document, path, use.member)
    module = document.workspace.document(path)
    definition = uses_of(module).top.get(use.member)
    if definition is None:
        return _standard_reward(document, use.member)
    return module, definition


def python_definition(
    document: Document, path: Path, name: str
) -> tuple[Document, Definition] | None:
    """Return the place of a function or class in a Python file, which is read but not run."""
    import ast as python

    module = document.workspace.document(path)
    try:
        tree = python.parse(module.text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in tree.body:
        known = getattr(node, "name", "")
        if isinstance(node, python.Assign) and isinstance(node.targets[0], python.Name):
            known = node.targets[0].id
        if known == name:
            start = module.source.line_starts[node.lineno - 1]
            found = re.compile(rf"\b{re.escape(name)}\b").search(module.text, start)
            if found is not None:
                span = Span(module.name, *found.span())
                return module, Definition(name=name, span=span, kind="python", node=node)
    return None


def _standard_reward(document: Document, name: str) -> tuple[Document, Definition] | None:
    """Return the place of a reward of the standard library: it is a function of the runtime."""
    runtime = importlib.util.find_spec("forgedsl_runtime")
    if name not in STANDARD_REWARDS or runtime is None or runtime.origin is None:
        return None
    files = sorted((Path(runtime.origin).parent / "rewards").glob("*.py"))
    found = (python_definition(document, path, name) for path in files)
    return next((place for place in found if place is not None), None)


def target_at(document: Document, offset: int) -> tuple[Document, Definition] | None:
    """Return the document and the definition of the name at an offset."""
    use = uses_of(document).at(offset)
    if use is None:
        return None
    return (document, use.definition) if use.definition is not None else _member(document, use)


def references(document: Document, offset: int) -> list[Place]:
    """Return all places of the name at an offset, in all files that may use it."""
    target = target_at(document, offset)
    if target is None:
        return []
    home, definition = target
    if definition.kind == "python":
        found = [Place(path=home.path, span=definition.span)]
    else:
        found = [Place(path=home.path, span=span) for span in uses_of(home).of(definition)]
    if uses_of(home).top.get(definition.name) is definition or definition.kind == "python":
        files = [document.path, *document.workspace.neighbours(home.path)]
        known = {path.resolve(): path for path in files if path.resolve() != home.path.resolve()}
        for path in known.values():
            found += _outside(document.workspace.document(path), home.path, definition.name)
    return found


def _outside(document: Document, home: Path, name: str) -> Iterator[Place]:
    """Yield the places of a file that refer to the declaration `name` of `home`."""
    uses = uses_of(document)
    aliases = {
        alias
        for alias in uses.imports
        if (path := module_path(document, alias)) is not None and path.resolve() == home.resolve()
    }
    for use in uses.uses:
        if use.alias in aliases and use.member == name:
            yield Place(path=document.path, span=use.span)


# ---- rename


def renamable(document: Document, offset: int) -> Span:
    """Return the span of the name at an offset. Raises RenameError if it cannot be changed."""
    use = uses_of(document).at(offset)
    target = target_at(document, offset)
    if use is None or target is None:
        raise RenameError("there is nothing here that can be renamed")
    home, definition = target
    if definition.kind == "python":
        raise RenameError(f"`{definition.name}` is declared in Python; rename it there")
    if home.path.resolve() == real_path(f"forgedsl:std/{home.path.name}").resolve():
        raise RenameError(
            f"`{definition.name}` belongs to the standard library and cannot be renamed"
        )
    if _is_protocol(definition):
        raise RenameError(
            f"`{definition.name}` cannot be renamed: the trainer, the rollout or the flow passes "
            f"this value to a {definition.of} by name"
        )
    if (
        definition.kind == "import"
        and _AS.match(document.text, definition.node.target_span.end) is None
    ):
        raise RenameError("this import has no name: write `as NAME`")
    return use.span


def _is_protocol(definition: Definition) -> bool:
    """True if the name must not change: trainer, rollout or flow bind a value to it."""
    if definition.kind != "field":
        return False
    if definition.of == "fn":  # it may be the weight of a draw, whose parameters have fixed names
        return definition.name in GIVEN
    return definition.of in PROTOCOL and not isinstance(definition.node.type, ast.NamedType)


def rename(document: Document, offset: int, new: str) -> list[Place]:
    """Return the places to change. Raises RenameError if the new name is not possible."""
    renamable(document, offset)
    if _NAME.fullmatch(new) is None:
        raise RenameError(f"`{new}` is not a valid name")
    if new in builtins.RESERVED:
        raise RenameError(f"`{new}` is a reserved word")
    places = references(document, offset)
    for place in places:
        other = document.workspace.document(place.path)
        taken = _taken(uses_of(other), new)
        is_member = uses_of(other).at(place.span.start)
        if taken and not (is_member and is_member.alias):
            raise RenameError(f"`{new}` is already declared")
    return places


def _taken(uses: Uses, name: str) -> bool:
    return name in uses.top or any(d.name == name for d in uses.definitions())
