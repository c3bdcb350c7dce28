"""Expressions and types -> documents.

`value` prints the right side of a statement: if it takes several lines, it needs parentheses.
`inner` prints an item inside brackets: it may take several lines without them. Both drop
parentheses that surround the whole expression.
Operands keep the parentheses that were written, and get those they need.
"""

from __future__ import annotations

from forgedsl.format.doc import (
    HARD,
    Bracket,
    Choice,
    Concat,
    Doc,
    Group,
    Line,
    Nest,
    Note,
    concat,
    flat_text,
    render,
)
from forgedsl.format.notes import Beside, Notes
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.trivia import TOKENS

_LEVELS = {
    "or": 1, "and": 2, "==": 4, "!=": 4, "<=": 4, ">=": 4, "<": 4, ">": 4,
    "+": 6, "-": 6, "*": 7, "/": 7, "%": 7, "**": 9,
}  # fmt: skip
_CONDITIONAL, _NOT, _COMPARISON, _SIGN, _POWER, _ATOM = 0, 3, 4, 8, 9, 10
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
Operands = list[tuple[str, ast.Expr]]  # operator before it, operand


class Expressions:
    """Prints expressions of one file; `notes` holds its comments."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    # ---- positions of an expression

    def value(self, node: ast.Expr) -> Doc:
        """Print a value after `=`, `return`, ...; if it breaks, it gets parentheses."""
        chain = _chain(node)
        if chain is None and not self._ends_open(node):
            return self._bare(node)
        body = self._operands(chain, node, node.span) if chain else self._bare(node)
        return Group(
            concat(Choice("("), Nest(concat(Line(""), Group(body))), Line(""), Choice(")"))
        )

    def _ends_open(self, node: ast.Expr) -> bool:
        """True if a prefix operator applies to operands without parentheses (`not a == b`)."""
        while isinstance(node, ast.Unary):
            level = _NOT if node.operator == "not" else _SIGN
            node = node.operand
            if isinstance(node, ast.Binary) and _level(node) >= level:
                return not self._is_parenthesised(node)
        return False

    def inner(self, node: ast.Expr) -> Doc:
        """Print an item of a bracket."""
        chain = _chain(node)
        if chain is None:
            return self._bare(node)
        return Group(Nest(self._operands(chain, node, None)))

    def flat(self, node: ast.Expr) -> str:
        """Print on one line of any width, without the comments inside: the caller prints those with
        the statement."""
        doc = Expressions(self.notes.silent()).inner(node)
        return flat_text(doc) or render(doc, indent=0)

    def operand(self, node: ast.Expr, level: int) -> Doc:
        """Print an operand of an operator that takes operands of at least `level`."""
        chain = _chain(node)
        if chain is None and not isinstance(node, ast.Unary):
            return self._bare(node)
        if _level(node) >= level and not self._is_parenthesised(node):
            return self._bare(node)
        inside = self._operands(chain, node, node.span) if chain else self._bare(node)
        return Group(concat("(", Nest(concat(Line(""), inside)), Line(""), ")"))

    # ---- nodes

    def _bare(self, node: ast.Expr) -> Doc:
        """Print a node without parentheses around it."""
        match node:
            case ast.Path():
                return node.text
            case ast.Index():
                return self._index(node)
            case ast.Bool():
                return "true" if node.value else "false"
            case ast.NoneLiteral():
                return "none"
            case ast.Call():
                return self._call(node.function.text, node.args, node.span.start, node.span.end)
            case ast.List():
                return self._bracket("[", node.items, "]", node.span.start, node.span.end)
            case ast.Unary():
                word = "not " if node.operator == "not" else node.operator
                level = _NOT if node.operator == "not" else _SIGN
                return concat(word, self.operand(node.operand, level))
            case ast.Binary() | ast.Conditional():
                chain = _chain(node)
                assert chain is not None
                return Group(Nest(self._operands(chain, node, None)))
        return self.literal_text(node)

    def _index(self, node: ast.Index) -> Doc:
        if node.dotted and isinstance(node.key, ast.String):
            return concat(self._bare(node.base), f".{node.key.value}")
        return concat(self._bare(node.base), "[", self.inner(node.key), "]")

    def _operands(self, chain: Operands, node: ast.Expr, parentheses: Span | None) -> Doc:
        """Print `a`, line break, `+ b`, line break, `+ c`, with the comments beside the operands.
        `parentheses` is the span of the parentheses around them, if any; comments between these
        and the operands are printed too."""
        spans = [(o.span.start, o.span.end) for _, o in chain]
        region = parentheses or chain[0][1].span.to(chain[-1][1].span)
        notes, after = self.notes.beside(spans, region.start, region.end)
        levels = _operand_levels(node, len(chain))
        parts: list[Doc] = []
        for i, (operator, operand) in enumerate(chain):
            if i:
                parts.append(HARD if notes[i].above or notes[i - 1].behind else Line())
            for text in notes[i].above:
                parts += [text, HARD]
            parts.append(f"{operator} " if operator else "")
            parts.append(self.operand(operand, levels[i]))
            if notes[i].behind:
                parts.append(Note(notes[i].behind or ""))
        for text in after:
            parts += [HARD, text]
        return Concat(tuple(parts))

    def _call(self, name: str, args: tuple[ast.Arg, ...], start: int, end: int) -> Doc:
        return self._bracket(f"{name}(", args, ")", start, end)

    def arguments(self, name: str, args: tuple[ast.Arg, ...], end: int) -> Doc:
        """Print the arguments of an import."""
        return self._call(name, args, args[0].span.start, end)

    def _bracket(
        self,
        open_: str,
        items: tuple[ast.Arg, ...] | tuple[ast.Expr, ...],
        close: str,
        start: int,
        end: int,
    ) -> Doc:
        if not items:
            return open_ + close
        spans = [(item.span.start, item.span.end) for item in items]
        notes, after = self.notes.beside(spans, start, end)
        docs = [self._item(item) for item in items]
        each = bool(after) or any(n.above or n.behind for n in notes)
        if not each:
            each = any(_has_hard(d) for d in docs) and len(docs) > 1
        ends = [_end(n) for n in notes]
        if after:
            ends[-1] = Concat((ends[-1], *(p for t in after for p in (HARD, t))))
        above = [Concat(tuple(p for t in n.above for p in (t, HARD))) for n in notes]
        printed = tuple(concat(a, d) if a.docs else d for a, d in zip(above, docs, strict=True))
        return Bracket(open_, printed, close, each=each, ends=tuple(ends))

    def _item(self, item: ast.Arg | ast.Expr) -> Doc:
        if not isinstance(item, ast.Arg):
            return self.inner(item)
        if item.name is None:
            return self.inner(item.value)
        return concat(f"{item.name} = ", self.inner(item.value))

    def _is_parenthesised(self, node: ast.Expr) -> bool:
        """True if the node's span begins with a parenthesis."""
        match node:
            case ast.Binary():
                return node.span.start < node.left.span.start
            case ast.Conditional():
                return node.span.start < node.then.span.start
        source = self.notes.source
        return source is not None and source.text.startswith("(", node.span.start)

    # ---- literals

    def literal_text(self, node: ast.Expr) -> str:
        """Return numbers and strings as they were written."""
        match node:
            case ast.String():
                return self._string(node)
            case ast.Number() | ast.Quantity():
                return node.text
            case ast.Integer():
                return self._integer(node)
        raise AssertionError(node)

    def _integer(self, node: ast.Integer) -> str:
        text = self._written(node)
        return text if text.replace("_", "").isdecimal() else str(node.value)

    def _written(self, node: ast.Expr) -> str:
        source = self.notes.source
        return "" if source is None else source.text[node.span.start : node.span.end]

    def _string(self, node: ast.String) -> str:
        written = self._written(node)
        for match in TOKENS.finditer(written):
            if not match[0].startswith("#"):
                return _unix(match[0])
        if node.style == "raw":
            return f'r"{node.value}"'
        return quoted(node.value)

    # ---- types

    def type(self, node: ast.Type) -> str:
        """Print a type, on one line."""
        match node:
            case ast.NamedType():
                return node.name
            case ast.GenericType():
                return f"{node.name}[{', '.join(self.type(a) for a in node.args)}]"
            case ast.TensorType():
                axes = ", ".join(self.flat(axis) for axis in node.axes)
                return f"{'diff ' if node.diff else ''}[{axes}] {node.dtype}"
        raise AssertionError(node)


def quoted(value: str) -> str:
    """Write a string literal with this value."""
    return '"' + "".join(_ESCAPES.get(char, char) for char in value) + '"'


def _unix(text: str) -> str:
    """Drop carriage returns, which the reader of indented strings drops too."""
    return text.replace("\r\n", "\n") if text.startswith(('"""\n', '"""\r\n')) else text


def _end(notes: Beside) -> Doc:
    return Note(notes.behind) if notes.behind else ""


def _has_hard(doc: Doc) -> bool:
    return flat_text(doc) is None


def _level(node: ast.Expr) -> int:
    match node:
        case ast.Conditional():
            return _CONDITIONAL
        case ast.Binary():
            return _LEVELS[node.operator]
        case ast.Unary():
            return _NOT if node.operator == "not" else _SIGN
    return _ATOM


def _chain(node: ast.Expr) -> Operands | None:
    """Return the operands of a chain of one precedence level; None if the node is no chain."""
    match node:
        case ast.Conditional():
            rest = node.otherwise
            tail = _chain(rest) if isinstance(rest, ast.Conditional) and _is_open(rest) else None
            if tail is None:
                tail = [("", rest)]
            tail[0] = ("else", tail[0][1])
            return [("", node.then), ("if", node.test), *tail]
        case ast.Binary():
            found: Operands = [(node.operator, node.right)]
            level = _LEVELS[node.operator]
            left: ast.Expr = node.left
            while (
                isinstance(left, ast.Binary)
                and _LEVELS[left.operator] == level
                and level not in (_COMPARISON, _POWER)
                and _is_open(left)
            ):
                found.append((left.operator, left.right))
                left = left.left
            found.append(("", left))
            return found[::-1]
    return None


def _is_open(node: ast.Binary | ast.Conditional) -> bool:
    """True if there are no parentheses around it."""
    first = node.left if isinstance(node, ast.Binary) else node.then
    return node.span.start >= first.span.start


def _operand_levels(node: ast.Expr, num_operands: int) -> list[int]:
    """Return the level that each operand needs to be printed without parentheses."""
    if isinstance(node, ast.Conditional):
        return [1] * (num_operands - 1) + [_CONDITIONAL]
    assert isinstance(node, ast.Binary)
    level = _LEVELS[node.operator]
    if level == _POWER:
        return [_ATOM, _SIGN]
    if level == _COMPARISON:
        return [level + 1, level + 1]
    return [level] + [level + 1] * (num_operands - 1)
