"""The text of HIR, graph and plan, for people: what `--print-after` and `forgec build --emit` show.

    kind = "service", name = "trainer", settings = {procs = 4 <- file @29:15+1 at @29:3+5, ...}

Records are written as `hir.Decl(field = value, ...)`. Fields with their default value are left out.
A record that several others refer to has a name (`%service.trainer`) and is defined once.
Expressions stand in backticks as in a .forge file. `@35:10+8` is line, column and length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from forgedsl.hir.evaluate import Bytes, Seconds
from forgedsl.ir import graph
from forgedsl.ir import program as ir
from forgedsl.records import fields
from forgedsl.settings import Auto
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast

WIDTH = 100
NAMED = (ir.Scope, ir.Function, ir.Decl, ir.RewardDecl)
"""kinds of records that get a name and a definition of their own"""
EXPRESSIONS = (ast.Path, ast.Index, ast.Integer, ast.Number, ast.Quantity, ast.String, ast.Bool,
               ast.NoneLiteral, ast.List, ast.Call, ast.Unary, ast.Binary,
               ast.Conditional)  # fmt: skip
CODE = (*EXPRESSIONS, ast.Assign, ast.TypedAssign, ast.Return, ast.Minimize, ast.Report, ast.Field)
"""kinds of nodes that are written as .forge code"""
OF_MACHINE = {"detected", "base_dir"}
"""fields that say where a plan was made, and so are not written"""
DETAILS = {"default": "default", "file": ""}
"""details of an origin that are fixed for its layer, and so are not written"""


def print_ir(
    value: Any,
    sources: Mapping[str, SourceFile],
    *,
    externals: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a record. `externals` are records that are named but not defined in it."""
    return _Printer(sources, externals or {}).document(value)


class _Group:
    """A bracketed list of parts, written on one line or one part a line."""

    def __init__(self, opening: str, items: list[tuple[str, Any]], closing: str) -> None:
        self.opening, self.items, self.closing = opening, items, closing
        self.flat = f"{opening}{', '.join(h + _flat(i) for h, i in items)}{closing}"
        self.tail = ""

    def behind(self, text: str) -> _Group:
        """Add text after the closing bracket; return the group."""
        self.tail += text
        self.flat += text
        return self


def _flat(part: Any) -> str:
    return part if isinstance(part, str) else part.flat


def _lines(part: Any, indent: int, used: int) -> str:
    """Lay out a part: on one line if it fits after `used` columns, else on several."""
    if isinstance(part, str) or not part.items:
        return _flat(part)
    body, first = part.flat.removesuffix(part.tail), part.tail.partition("\n")[0]
    if "\n" not in body and used + len(body) + len(first) + 1 <= WIDTH:
        return _flat(part)
    inner = "  " * (indent + 1)
    rows = [f"{inner}{h}{_lines(i, indent + 1, len(inner) + len(h))}," for h, i in part.items]
    return "\n".join([part.opening, *rows, "  " * indent + part.closing + part.tail])


class _Printer:
    """Writer of one document. Names and files are numbered in order of appearance."""

    def __init__(self, sources: Mapping[str, SourceFile], externals: Mapping[str, Any]) -> None:
        self.sources = sources
        self.names: dict[int, str] = {id(value): f"%{name}" for name, value in externals.items()}
        self.waiting: list[tuple[str, Any]] = []
        self.taken: set[str] = set(self.names.values())
        self.files: dict[str, int] = {}

    def document(self, value: Any) -> str:
        parts = [_lines(self.record(value), 0, 0)]
        while self.waiting:
            name, record = self.waiting.pop(0)
            head = f"{name} = "
            parts.append(head + _lines(self.record(record), 0, len(head)))
        files = [f"file {number} {json.dumps(name)}" for name, number in self.files.items()]
        return "\n\n".join([*parts, *(["\n".join(files)] if files else [])]) + "\n"

    def value(self, value: Any) -> Any:
        """Return a value as a part of the text: a string, or a group."""
        match value:
            case None:
                return "none"
            case bool():
                return "true" if value else "false"
            case Enum():
                return f"{_name(type(value))}:{value.name}"
            case Seconds() | Bytes():
                return f"{float(value)!r}{'s' if isinstance(value, Seconds) else 'B'}"
            case int():
                return str(value)
            case float():
                return repr(value) if math.isfinite(value) else f'float("{value}")'
            case str():
                return json.dumps(value)
            case Span():
                return self.span(value)
            case Auto():
                return "auto"
            case ir.Ref():
                return f"&{value.name}"
            case ir.Value():
                return self.setting(value)
            case _:
                return self.compound(value)

    def compound(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            items = [(f"{_key(k)} = ", self.value(v)) for k, v in value.items()]
            return _Group("{", items, "}")
        if isinstance(value, tuple | list | frozenset):
            opening = {tuple: "[", list: "list[", frozenset: "set["}[type(value)]
            ordered = sorted(value) if isinstance(value, frozenset) else value
            return _Group(opening, [("", self.value(item)) for item in ordered], "]")
        if isinstance(value, graph.Node):
            return self.node(value)
        if isinstance(value, graph.Edge):
            return self.edge(value)
        if id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, NAMED):
            return self.name(value)
        if isinstance(value, CODE) and not {"`", "\n"} & set(text := _code(value)):
            return f"`{text}`"
        return self.record(value)

    def node(self, node: graph.Node) -> Any:
        """Write a node: `%rollout = sample generator(prompt = %prompt @74:30+6) {n = 8}`, then its
        output."""
        target = f" {node.target}" if node.target else ""
        head = f"%{node.name} = {node.op}{target}({', '.join(self.reads(i) for i in node.inputs)})"
        tail = (" at_step" if node.at_step else "") + "\n      -> "
        tail += f"{node.stream.name if node.stream else 'nothing'} {node.level.name}"
        tail += f" root {node.root}" if node.root else ""
        if node.samplers:
            tail += f" samplers {', '.join(sorted(node.samplers))};"
        tail += f" id {json.dumps(node.id)} {self.span(node.span)}"
        if not node.settings:
            return head + tail
        items = [(f"{_key(k)} = ", self.value(v)) for k, v in node.settings.items()]
        return _Group(f"{head} {{", items, "}").behind(tail)

    def reads(self, read: graph.Input) -> str:
        attribute = f" .{read.attribute}" if read.attribute is not None else ""
        return f"{read.argument} = %{read.edge}{attribute} {self.span(read.span)}"

    def edge(self, edge: graph.Edge) -> str:
        """Write an edge: `edge "train/prompt#bc15" -> "train/rollout#8dfb" DATA "prompt" :
        "Stream[Prompt]"`."""
        attribute = "" if edge.attribute is None else f" .{edge.attribute}"
        ends = f"{json.dumps(edge.source)} -> {json.dumps(edge.target)}"
        label = f"{json.dumps(edge.label)}{attribute}"
        return f"edge {ends} {edge.kind.name} {label} : {json.dumps(edge.type)}"

    def record(self, value: Any) -> _Group:
        """Write a record: `hir.Decl(field = value, ...)`."""
        items = []
        for field in fields(value):
            if field.name in OF_MACHINE:
                continue
            item = getattr(value, field.name)
            if item is not None and not _is_default(field, item):
                items.append((f"{field.name} = ", self.value(item)))
        return _Group(f"{_name(type(value))}(", items, ")")

    def name(self, value: Any) -> str:
        """Return the name of a record, which is defined later in the document."""
        if isinstance(value, ir.Scope):
            base = f"%scope.{value.module}" if value.module else "%scope"
        else:
            base = f"%{getattr(value, 'kind', 'reward')}.{value.name}"
        found, number = base, 2
        while found in self.taken:
            found, number = f"{base}.{number}", number + 1
        self.taken.add(found)
        self.names[id(value)] = found
        self.waiting.append((found, value))
        return found

    def setting(self, value: ir.Value) -> Any:
        """Write a setting with its origin: `4 <- file @29:15+1 at @29:3+5`."""
        origin = value.origin
        tail = f" <- {origin.layer}"
        if origin.detail != DETAILS.get(origin.layer):
            tail += f" {json.dumps(origin.detail)}"
        tail += f" {self.span(origin.span)}" if origin.span is not None else ""
        tail += f" at {self.span(value.place)}" if value.place is not None else ""
        part = self.value(value.value)
        return part + tail if isinstance(part, str) else part.behind(tail)

    # ---- places

    def starts(self, file: str) -> tuple[int, ...]:
        source = self.sources.get(file)
        return source.line_starts if source is not None else (0,)

    def span(self, span: Span) -> str:
        number = self.files.setdefault(span.file, len(self.files))
        starts = self.starts(span.file)
        line = max(1, sum(start <= span.start for start in starts))
        head = f"{number}:" if number else ""
        return f"@{head}{line}:{span.start - starts[line - 1] + 1}+{span.end - span.start}"


def _name(cls: type) -> str:
    """Return the package and class of a record: `hir.Decl`."""
    return f"{cls.__module__.split('.')[1]}.{cls.__name__}"


def _code(node: ast.Node) -> str:
    """Write an expression, statement or field in .forge syntax."""
    from forgedsl.format.expressions import Expressions
    from forgedsl.format.notes import Notes

    printer = Expressions(Notes(None))
    match node:
        case ast.Assign():
            return f"{node.path.text} = {printer.flat(node.value)}"
        case ast.TypedAssign():
            return f"{node.name}: {printer.type(node.type)} = {printer.flat(node.value)}"
        case ast.Return():
            return f"return {printer.flat(node.value)}"
        case ast.Minimize():
            return f"minimize {printer.flat(node.value)}"
        case ast.Report():
            return f"report {node.name} = {printer.flat(node.value)}"
        case ast.Field():
            default = "" if node.default is None else f" = {printer.flat(node.default)}"
            return f"field {node.name}: {printer.type(node.type)}{default}"
    return printer.flat(node)  # type: ignore[arg-type]


def _is_default(field: Any, value: Any) -> bool:
    if callable(field.default_factory):
        return bool(value == field.default_factory())
    return type(value) is type(field.default) and bool(value == field.default)


def _key(key: str) -> str:
    plain = key.isascii() and all(part.isidentifier() for part in key.split("."))
    return key if plain else json.dumps(key)
