"""Calls as signature help and completion show them: a label, and the parameters in it.

a function of the file, of a module, of the library or of Python --> Call
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from forgedsl import api
from forgedsl.format.expressions import Expressions
from forgedsl.format.notes import Notes
from forgedsl.ide.uses import Definition, module_path, python_definition, uses_of
from forgedsl.ide.workspace import Document
from forgedsl.ir.program import Function
from forgedsl.records import dataclass, replace
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A parameter as it is shown: `beta: float = 0.0`. `doc` is its meaning. `place` is where it
    stands in the label of its call."""

    name: str
    text: str
    doc: str = ""
    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The call at the cursor: its whole label, its parameters, and the index of the one that the
    cursor is in; None if it is in none of them."""

    label: str
    parameters: tuple[Shown, ...]
    active: int | None
    doc: str


def call_of(name: str, parameters: Iterable[Shown], result: str = "", doc: str = "") -> Call:
    """Return a call with its label, and with the places of the parameters in it."""
    label = f"{name}("
    placed: list[Shown] = []
    for each in parameters:
        label += ", " if placed else ""
        placed.append(replace(each, place=(len(label), len(label) + len(each.text))))
        label += each.text
    shown = f" -> {result}" if result else ""
    return Call(label=f"{label}){shown}", parameters=tuple(placed), active=None, doc=doc)


def of_function(
    name: str, kind: str, fields: Iterable[ast.Field], result: ast.Type | None, doc: str
) -> Call:
    from forgedsl.reference.expressions import FIELDS

    printer = Expressions(Notes(None))
    shown = []
    for each in fields:
        default = "" if each.default is None else f" = {printer.flat(each.default)}"
        meaning = FIELDS.get(each.name, "") if kind == "loss" else ""
        text = f"{each.name}: {printer.type(each.type)}{default}"
        shown.append(Shown(name=each.name, text=text, doc=meaning))
    returned = "" if result is None else printer.type(result)
    return call_of(f"{kind} {name}", shown, returned, doc)


def of_member(document: Document, alias: str, name: str) -> Call | None:
    """Return the signature of a function of a module: of the library, a file, or Python."""
    decl = uses_of(document).imports[alias]
    shown = f"{alias}.{name}"
    if isinstance(decl, ast.ImportForge) and decl.target.startswith("std/"):
        found = _library(decl.target).get(name)
        if found is None:
            return None
        return of_function(shown, found.kind, found.fields, found.result, found.doc)
    path = module_path(document, alias)
    if isinstance(decl, ast.ImportForge) and path is not None:
        definition = uses_of(document.workspace.document(path)).top.get(name)
        node = None if definition is None else definition.node
        if not isinstance(node, ast.FnDecl):
            return None
        return of_function(shown, node.kind, node.fields, node.result, node.doc)
    if path is None:
        return None
    written = python_definition(document, path, name)
    return None if written is None else _python(document, path, shown, written[1])


@cache
def _library(module: str) -> dict[str, Function]:
    return dict(api.load_functions(module)[0])


def _python(document: Document, path: Path, name: str, found: Definition) -> Call | None:
    """Return the signature of a Python function, or of the class of a reward or environment."""
    import ast as python

    node: Any = found.node
    doc = (python.get_docstring(node) or "") if isinstance(node, python.ClassDef) else ""
    seen: set[str] = set()
    while isinstance(node, python.ClassDef) and node.name not in seen:
        seen.add(node.name)
        node = _initializer(document, path, node)
    if not isinstance(node, python.FunctionDef | python.AsyncFunctionDef):
        return None
    is_method = node is not found.node
    args = node.args
    listed = [*args.posonlyargs, *args.args][1 if is_method else 0 :]
    missing = len(listed) - len(args.defaults)
    pairs = [*zip(listed, [*[None] * missing, *args.defaults], strict=True)]
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    shown = []
    for each, default in pairs:
        bare = python.arg(arg=each.arg, annotation=each.annotation)
        text = python.unparse(bare) + ("" if default is None else f" = {python.unparse(default)}")
        shown.append(Shown(name=each.arg, text=text))
    result = "" if is_method or node.returns is None else python.unparse(node.returns)
    return call_of(name, shown, result, doc or python.get_docstring(node) or "")


def _initializer(document: Document, path: Path, node: Any) -> Any:
    """Return the `__init__` of a class; if it has none, its first base in the same file."""
    import ast as python

    made = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
    bases = [each.id for each in node.bases if isinstance(each, python.Name)]
    if made is not None or not bases:
        return made
    base = python_definition(document, path, bases[0])
    return None if base is None else base[1].node
