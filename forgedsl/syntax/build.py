"""Reductions of the grammar -> AST nodes, called by Lark while it parses.

Every method is named after a rule or alias of grammar/forge.lark and receives the list of its
children: tokens (all of them, punctuation included, for the spans), finished nodes, and None for
an absent optional part. No parse tree is built in between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from forgedsl.records import replace
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.units import UNITS

Token = Any  # a token of Lark or of fast_parser.py: value, start_pos, end_pos
MAX_PARTS = 64
"""parts of a dotted name, at most; no setting has more than three"""
_LETTERS = "".join(UNITS)
_ESCAPE = r"(?s)\\(u[0-9A-Fa-f]{4}|.)"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "\n": ""}
MAX_DIGITS = 100


def _nodes(children: list[Any]) -> tuple[Any, ...]:
    return tuple(child for child in children if isinstance(child, ast.Node))


class Builder:
    """Builds the nodes of the file named `file`; mistakes inside literals go to `on_error`
    (code, name, message, span, help)."""

    def __init__(self) -> None:
        self.file = ""
        self.on_error: Callable[[str, str, str, Span, str], None]

    # ---- places

    def _span(self, token: Token) -> Span:
        return Span(self.file, token.start_pos or 0, token.end_pos or 0)

    def _cover(self, children: list[Any]) -> Span:
        """Return the span from the first to the last child that is present."""
        first = next(c for c in children if c is not None)
        last = next(c for c in reversed(children) if c is not None)
        start = first.span.start if isinstance(first, ast.Node) else first.start_pos
        end = last.span.end if isinstance(last, ast.Node) else last.end_pos
        return Span(self.file, start or 0, end or 0)

    # ---- file and declarations

    def start(self, children: list[Any]) -> ast.File:
        nodes = _nodes(children)
        edition = nodes[0] if nodes and isinstance(nodes[0], ast.Edition) else None
        decls = nodes[1:] if edition else nodes
        span = self._cover(list(nodes)) if nodes else Span(self.file, 0, 0)
        return ast.File(edition=edition, decls=decls, span=span)

    def value(self, children: list[Any]) -> Any:
        return children[0]

    def edition(self, children: list[Any]) -> ast.Edition:
        number = self.integer([children[1]]).value
        return ast.Edition(number=number, span=self._cover(children[:2]))

    def import_forge(self, children: list[Any]) -> ast.ImportForge:
        _, target, _, alias, *rest = children
        args = next((c for c in rest if isinstance(c, tuple)), ())
        return ast.ImportForge(
            target=self._text(target, 1),
            target_span=self._span(target),
            alias=None if alias is None else str(alias),
            args=args,
            span=self._cover([c for c in children if not isinstance(c, tuple)]),
        )

    def import_python(self, children: list[Any]) -> ast.ImportPython:
        _, _, target, _, alias = children
        return ast.ImportPython(
            target=self._text(target, 1),
            target_span=self._span(target),
            alias=None if alias is None else str(alias),
            span=self._cover(children),
        )

    def param(self, children: list[Any]) -> ast.Param:
        _, name, _, type_, _, default = children
        return ast.Param(
            name=str(name),
            name_span=self._span(name),
            type=type_,
            default=default,
            span=self._cover(children),
        )

    def require(self, children: list[Any]) -> ast.Require:
        _, test, _, message = children
        text = None if message is None else self._text(message, 1)
        return ast.Require(test=test, message=text, span=self._cover(children))

    def block_decl(self, children: list[Any]) -> ast.BlockDecl:
        kind, name, _, ctor, _, when, block = children
        return ast.BlockDecl(
            kind=str(kind),
            kind_span=self._span(kind),
            name=None if name is None else str(name),
            name_span=None if name is None else self._span(name),
            ctor=ctor,
            when=when,
            block=block,
            span=self._cover(children),
        )

    def bare_decl(self, children: list[Any]) -> ast.BlockDecl:
        """A service without a block: the same as with `{}`."""
        end = self._cover(children).end
        block = ast.Block(items=(), span=Span(self.file, end, end))
        return self.block_decl([*children, None, None, block])

    def bind_decl(self, children: list[Any]) -> ast.BindDecl:
        kind, name, _, value, block = children
        return ast.BindDecl(
            kind=str(kind),
            kind_span=self._span(kind),
            name=str(name),
            name_span=self._span(name),
            value=value,
            settings=block,
            span=self._cover(children),
        )

    def fn_decl(self, children: list[Any]) -> ast.FnDecl:
        kind, name, _, fields, _, _, result, *body = children
        last = body[-1]
        return ast.FnDecl(
            kind=str(kind),
            kind_span=self._span(kind),
            name=str(name),
            name_span=self._span(name),
            fields=fields or (),
            result=result,
            body=last if len(body) == 1 else body[1],
            settings=last if len(body) == 3 else None,
            span=Span(self.file, kind.start_pos, self._cover(body).end),
        )

    def fields(self, children: list[Any]) -> tuple[ast.Field, ...]:
        return _nodes(children)

    def field(self, children: list[Any]) -> ast.Field:
        name, _, type_, _, default = children
        return ast.Field(
            name=str(name),
            name_span=self._span(name),
            type=type_,
            default=default,
            span=self._cover(children),
        )

    # ---- items

    def block(self, children: list[Any]) -> ast.Block:
        return ast.Block(items=_nodes(children), span=self._cover(children))

    def assign(self, children: list[Any]) -> ast.Assign:
        path, _, value = children
        return ast.Assign(path=path, value=value, span=path.span.to(value.span))

    def typed_assign(self, children: list[Any]) -> ast.TypedAssign:
        name, _, type_, _, value = children
        return ast.TypedAssign(name=str(name), type=type_, value=value, span=self._cover(children))

    def nested(self, children: list[Any]) -> ast.Nested:
        name, label, _, when, block = children
        return ast.Nested(
            name=str(name),
            name_span=self._span(name),
            label=None if label is None else str(label),
            label_span=None if label is None else self._span(label),
            when=when,
            block=block,
            span=self._cover(children),
        )

    def dotted(self, children: list[Any]) -> ast.Nested:
        """`engine.extra { ... }` is `engine { extra { ... } }`."""
        path, _, last, block = children
        end = self._span(last)
        for name in (str(last), *reversed(path.parts)):
            place = Span(end.file, end.end - len(name), end.end)
            end = Span(end.file, 0, place.start - 1)
            span = Span(place.file, place.start, block.span.end)
            found = ast.Nested(
                name=name, name_span=place, label=None, label_span=None, when=None, block=block,
                span=span,
            )  # fmt: skip
            block = ast.Block(items=(found,), span=span)
        return found

    def return_(self, children: list[Any]) -> ast.Return:
        return ast.Return(value=children[1], span=self._cover(children))

    def minimize(self, children: list[Any]) -> ast.Minimize:
        return ast.Minimize(value=children[1], span=self._cover(children))

    def report(self, children: list[Any]) -> ast.Report:
        _, name, _, value = children
        return ast.Report(
            name=str(name), name_span=self._span(name), value=value, span=self._cover(children)
        )

    def sync(self, children: list[Any]) -> ast.Sync:
        _, source, _, target, block = children
        return ast.Sync(source=source, target=target, block=block, span=self._cover(children))

    def sync_assign(self, children: list[Any]) -> ast.Assign:
        """`sync.every = 4` in a profile."""
        word, _, path, _, value = children
        parts = (str(word), *path.parts)
        whole = ast.Path(parts=parts, span=self._span(word).to(path.span))
        return ast.Assign(path=whole, value=value, span=self._cover(children))

    def sync_block(self, children: list[Any]) -> ast.Nested:
        """`sync { every = 4 }` in a profile."""
        word, block = children
        return ast.Nested(
            name=str(word), name_span=self._span(word), label=None, label_span=None, when=None,
            block=block, span=self._cover(children),
        )  # fmt: skip

    def effect(self, children: list[Any]) -> ast.Effect:
        return ast.Effect(call=children[0], span=children[0].span)

    # ---- types

    def named(self, children: list[Any]) -> ast.NamedType:
        return ast.NamedType(name=str(children[0]), span=self._span(children[0]))

    def generic(self, children: list[Any]) -> ast.GenericType:
        return ast.GenericType(
            name=str(children[0]), args=_nodes(children), span=self._cover(children)
        )

    def tensor(self, children: list[Any]) -> ast.TensorType:
        return ast.TensorType(
            axes=_nodes(children), dtype=str(children[-1]), span=self._cover(children)
        )

    def diff(self, children: list[Any]) -> ast.TensorType:
        return ast.TensorType(
            axes=_nodes(children), dtype=str(children[-1]), diff=True, span=self._cover(children)
        )

    # ---- expressions

    def path(self, children: list[Any]) -> ast.Path:
        if len(children) == 1:
            return ast.Path(parts=(str(children[0]),), span=self._span(children[0]))
        left, _, name = children
        span, size = self._cover(children), len(left.parts)
        if size > MAX_PARTS:
            return ast.Path(parts=left.parts, span=span)
        if size == MAX_PARTS:
            message = f"this name has more than {MAX_PARTS} parts"
            self.on_error("S011", "nesting", message, span, "a setting has only two or three parts")
        return ast.Path(parts=(*left.parts, str(name)), span=span)

    def index(self, children: list[Any]) -> ast.Index:
        base, _, key, _ = children
        return ast.Index(base=base, key=key, span=self._cover(children))

    def member(self, children: list[Any]) -> ast.Index:
        base, _, name = children
        key = ast.String(value=str(name), span=self._span(name))
        return ast.Index(base=base, key=key, dotted=True, span=self._cover(children))

    def cond(self, children: list[Any]) -> ast.Conditional:
        then, _, test, _, otherwise = children
        return ast.Conditional(
            then=then, test=test, otherwise=otherwise, span=self._cover(children)
        )

    def binary(self, children: list[Any]) -> ast.Binary:
        left, operator, right = children
        return ast.Binary(
            operator=str(operator), left=left, right=right, span=left.span.to(right.span)
        )

    def unary(self, children: list[Any]) -> ast.Unary:
        operator, operand = children
        return ast.Unary(operator=str(operator), operand=operand, span=self._cover(children))

    def call(self, children: list[Any]) -> ast.Call:
        function, _, args, close = children
        end = close.end_pos
        return ast.Call(
            function=function, args=args or (), span=Span(self.file, function.span.start, end)
        )

    def args(self, children: list[Any]) -> tuple[ast.Arg, ...]:
        return tuple(
            node if isinstance(node, ast.Arg) else ast.Arg(name=None, value=node, span=node.span)
            for node in _nodes(children)
        )

    def kwarg(self, children: list[Any]) -> ast.Arg:
        return ast.Arg(name=str(children[0]), value=children[2], span=self._cover(children))

    def list_(self, children: list[Any]) -> ast.List:
        return ast.List(items=_nodes(children), span=self._cover(children))

    def paren(self, children: list[Any]) -> Any:
        return replace(children[1], span=self._cover(children))

    # ---- literals

    def integer(self, children: list[Any]) -> ast.Integer:
        token = children[0]
        span = self._span(token)
        digits = token.value.replace("_", "")
        if len(digits) > MAX_DIGITS:
            self._bad_number(span)
            digits = "0"
        return ast.Integer(value=int(digits), span=span)

    def number(self, children: list[Any]) -> ast.Number:
        token = children[0]
        span = self._span(token)
        value = float(token.value.replace("_", ""))
        if math.isinf(value):
            self._bad_number(span)
        return ast.Number(value=value, text=str(token), span=span)

    def quantity(self, children: list[Any]) -> ast.Quantity:
        token = children[0]
        number = token.value.rstrip(_LETTERS)
        unit = token.value[len(number) :]
        value = float(number.replace("_", "")) * UNITS[unit]
        if math.isinf(value):
            self._bad_number(self._span(token))
        return ast.Quantity(value=value, unit=unit, text=str(token), span=self._span(token))

    def string(self, children: list[Any]) -> ast.String:
        return ast.String(value=self._text(children[0], 1), span=self._span(children[0]))

    def text(self, children: list[Any]) -> ast.String:
        value = dedent(self._text(children[0], 3))
        return ast.String(value=value, style="text", span=self._span(children[0]))

    def raw_string(self, children: list[Any]) -> ast.String:
        token = children[0]
        return ast.String(value=token.value[2:-1], style="raw", span=self._span(token))

    def true(self, children: list[Any]) -> ast.Bool:
        return ast.Bool(value=True, span=self._span(children[0]))

    def false(self, children: list[Any]) -> ast.Bool:
        return ast.Bool(value=False, span=self._span(children[0]))

    def none(self, children: list[Any]) -> ast.NoneLiteral:
        return ast.NoneLiteral(span=self._span(children[0]))

    def _bad_number(self, span: Span) -> None:
        self.on_error("S019", "number", "this number is out of range", span, "")

    def _text(self, token: Token, num_quotes: int) -> str:
        """Return the value of a quoted token, with escapes resolved."""
        body = str(token.value)[num_quotes:-num_quotes]
        if "\\" not in body:
            return body

        def resolve(match: re.Match[str]) -> str:
            name = match[1]
            if len(name) == 5:
                return chr(int(name[1:], 16))
            if name not in _ESCAPES:
                start = self._span(token).start + num_quotes + match.start()
                self.on_error(
                    "S020",
                    "escape",
                    f"unknown escape `\\{name}`",
                    Span(self.file, start, start + 2),
                    'write `\\\\` for a backslash, or a raw string r"..." for a pattern',
                )
            return _ESCAPES.get(name, name)

        return re.sub(_ESCAPE, resolve, body)


def dedent(text: str) -> str:
    """Drop the line break after the opening quotes and the indentation all lines share."""
    if not text.startswith(("\n", "\r\n")):
        return text
    lines = text.replace("\r\n", "\n").split("\n")[1:]
    if not lines[-1].strip():
        lines[-1] = ""  # the closing quotes stand on a line of their own
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    shared = min(indents, default=0)
    return "\n".join(line[shared:] if line.strip() else "" for line in lines)
