"""The text of an IR -> the IR. See the package for the form.

    text -> tokens -> definitions by name -> records, each built when it is first needed

A scope is made empty and filled at the end, since its functions refer to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from forgedsl.graph import ir as graph
from forgedsl.hir import ir
from forgedsl.hir.evaluate import Bytes, Seconds
from forgedsl.irtext import expressions
from forgedsl.irtext.registry import classes
from forgedsl.records import fields
from forgedsl.schema.types import Auto
from forgedsl.source import Span

TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<code>`[^`]*`\d+)|(?P<span>@(?:\d+:)?\d+:-?\d+\+-?\d+)'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:e[-+]?\d+)?[sB]?(?![\w.]))|(?P<arrow><-|->)"
    r"|(?P<name>[%&.]?[A-Za-z_][\w./:]*)|(?P<mark>[()\[\]{},=:;]))"
)
WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}
CLOSING = {"(": ")", "[": "]", "{": "}"}


class IrTextError(ValueError):
    """The text is not the form of an IR; the message says where."""


def read_ir(text: str, *, externals: Mapping[str, Any] | None = None) -> Any:
    """The record that a text describes. `externals` are those that it names and does not define."""
    return _Reader(text, externals or {}).document()


class _Reader:
    """One document."""

    def __init__(self, text: str, externals: Mapping[str, Any]) -> None:
        body = self._trailer(text)
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while body[at:].strip():
            found = TOKEN.match(body, at)
            if found is None:
                raise IrTextError(f"cannot read {body[at : at + 40].strip()!r}")
            at = found.end()
            assert found.lastgroup is not None
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
        self.at = 0
        self.made: dict[str, Any] = {f"%{name}": value for name, value in externals.items()}
        self.starts: dict[str, int] = {}
        self.scopes: list[tuple[ir.Scope, int]] = []

    def _trailer(self, text: str) -> str:
        """Take files and places off the end."""
        self.files: list[tuple[str, list[int]]] = []
        self.places: list[str] = []
        body = []
        for line in text.split("\n"):
            if found := re.fullmatch(r'file \d+ ("(?:[^"\\]|\\.)*") lines ([\d ]+)', line):
                self.files.append((json.loads(found[1]), [int(n) for n in found[2].split()]))
            elif found := re.fullmatch(r"loc \d+ = ([-\d:+ ]+)", line):
                self.places.append(found[1])
            else:
                body.append(line)
        return "\n".join(body)

    def document(self) -> Any:
        """The first record; definitions behind it are read when they are referred to."""
        for index, (kind, text) in enumerate(self.tokens[:-1]):
            is_start = index > 0 and self.tokens[index - 1][1] == ")"
            if kind == "name" and text[0] == "%" and is_start and self.tokens[index + 1][1] == "=":
                self.starts[text] = index + 2
        found = self.value()
        while self.scopes:
            scope, self.at = self.scopes.pop(0)
            read = self.value()
            scope.module, scope.names = read.module, read.names
        return found

    # ---- tokens

    def take(self, mark: str | None = None) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        if kind == "end" or (mark is not None and text != mark):
            raise IrTextError(f"expected {mark or 'a value'}, found {text or 'the end'}")
        self.at += 1
        return text

    def kind(self) -> str:
        """The kind of the next token."""
        return self.tokens[self.at][0] if self.at < len(self.tokens) else "end"

    def skip(self, text: str) -> bool:
        """Whether the next token is `text`; it is taken then."""
        found = self.next_is(text)
        self.at += found
        return found

    def next_is(self, text: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][1] == text

    # ---- values

    def value(self) -> Any:
        """A value, with its origin if one follows."""
        found = self.bare()
        while self.next_is("<-"):
            found = self.setting(found)
        return found

    def bare(self) -> Any:
        kind, text = self.kind(), self.take()
        match kind:
            case "string":
                return json.loads(text)
            case "number":
                return _number(text)
            case "span":
                return self.span(text)
            case "code":
                return self.code(text)
            case "name":
                return self.named(text)
        if text == "{":
            return self.mapping()
        if text == "[":
            return tuple(self.items("]"))
        raise IrTextError(f"expected a value, found {text}")

    def named(self, text: str) -> Any:
        if text in WORDS:
            return WORDS[text]
        if text == "auto":
            return Auto()
        if text[0] == "&":
            return ir.Ref(name=text[1:])
        if text[0] == "%":
            return self.node(text[1:]) if self.next_is("=") else self.reference(text)
        if text == "edge":
            return self.edge()
        if text in ("list", "set"):
            self.take("[")
            items = self.items("]")
            return items if text == "list" else frozenset(items)
        if text == "float":
            self.take("(")
            return float(str(self.items(")")[0]))
        cls, colon, member = text.partition(":")
        if cls not in classes():
            raise IrTextError(f"no record is called {cls}")
        return classes()[cls][member] if colon else self.record(classes()[cls])

    def record(self, cls: type[Any]) -> Any:
        """A record; what is not written is its default, or None."""
        self.take("(")
        given = self.mapping(")")
        required = (f.name for f in fields(cls) if not _has_default(f))
        return cls(**{name: None for name in required if name not in given}, **given)

    def node(self, name: str) -> graph.Node:
        """What `_Printer.node` wrote."""
        self.take("=")
        op = self.take()
        target = "" if self.next_is("(") else self.take()
        self.take("(")
        inputs = []
        while not self.next_is(")"):
            argument = self.take()
            self.take("=")
            edge = self.take()[1:]
            attribute = None if self.kind() == "span" else self.take()[1:]
            span = self.span(self.take())
            inputs.append(graph.Input(argument=argument, edge=edge, attribute=attribute, span=span))
            if not self.next_is(")"):
                self.take(",")
        self.take(")")
        settings = self.value() if self.next_is("{") else {}
        at_step = self.skip("at_step")
        self.take("->")
        stream = self.take()
        level = graph.Level[self.take()]
        root = self.take() if self.skip("root") else ""
        samplers = []
        while self.skip("samplers") or self.skip(","):
            samplers.append(self.take())
        self.skip(";")
        self.take("id")
        return graph.Node(
            id=json.loads(self.take()), name=name, op=op, target=target, inputs=tuple(inputs),
            level=level, root=root, samplers=frozenset(samplers), settings=settings,
            stream=graph.Stream.NOTHING if stream == "nothing" else graph.Stream[stream],
            at_step=at_step, span=self.span(self.take()),
        )  # fmt: skip

    def edge(self) -> graph.Edge:
        """What `_Printer.edge` wrote."""
        source = json.loads(self.take())
        self.take("->")
        target = json.loads(self.take())
        kind = graph.EdgeKind[self.take()]
        label = json.loads(self.take())
        attribute = None if self.next_is(":") else self.take()[1:]
        self.take(":")
        return graph.Edge(
            source=source, target=target, kind=kind, label=label, attribute=attribute,
            type=json.loads(self.take()),
        )  # fmt: skip

    def mapping(self, closing: str = "}") -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self.next_is(closing):
            key = self.take()
            self.take("=")
            found[json.loads(key) if key[0] == '"' else key] = self.value()
            if not self.next_is(closing):
                self.take(",")
        self.take(closing)
        return found

    def items(self, closing: str) -> list[Any]:
        found = []
        while not self.next_is(closing):
            found.append(self.value())
            if not self.next_is(closing):
                self.take(",")
        self.take(closing)
        return found

    def setting(self, value: Any) -> ir.Value:
        """What follows `<-`: layer, detail, place of the value, place of the setting."""
        from forgedsl.irtext.printer import DETAILS

        self.take("<-")
        layer = self.take()
        detail = json.loads(self.take()) if self.kind() == "string" else DETAILS[layer]
        span = place = None
        if self.kind() == "span":
            span = self.span(self.take())
        if self.next_is("at"):
            self.take()
            place = self.span(self.take())
        origin = ir.Origin(layer=layer, detail=detail, span=span)
        return ir.Value(value=value, origin=origin, place=place)

    def reference(self, name: str) -> Any:
        """The record of a definition, built once."""
        if name in self.made:
            return self.made[name]
        if name not in self.starts:
            raise IrTextError(f"{name} is not defined")
        back, self.at = self.at, self.starts[name]
        if self.tokens[self.at][1] == "hir.Scope":
            self.made[name] = scope = ir.Scope()
            self.scopes.append((scope, self.at))
        else:
            self.made[name] = self.value()
        self.at = back
        return self.made[name]

    # ---- places

    def span(self, text: str) -> Span:
        head, _, length = text[1:].partition("+")
        *file, line, column = (int(part) for part in head.split(":"))
        name, starts = self.files[file[0] if file else 0]
        start = starts[line - 1] + column - 1
        return Span(name, start, start + int(length))

    def code(self, text: str) -> Any:
        body, _, number = text[1:].rpartition("`")
        spans = []
        for place in self.places[int(number)].split():
            file, start, length = re.split(r"[:+]", place)
            spans.append(Span(self.files[int(file)][0], int(start), int(start) + int(length)))
        return expressions.read(body, tuple(spans))


def _has_default(field: Any) -> bool:
    return callable(field.default_factory) or type(field.default).__name__ != "MISSING"


def _number(text: str) -> Any:
    if text[-1] in "sB":
        return (Seconds if text[-1] == "s" else Bytes)(float(text[:-1]))
    return float(text) if "." in text or "e" in text else int(text)
