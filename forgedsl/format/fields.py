"""The head of a function: `loss grpo(logprob: diff [B, T] f32, ...) -> [B] f32`.

Fields stay on one line if they were written so and fit. Otherwise they are indented on lines of
their own, grouped as they were written if that fits. With one field per line they form a table
(`logprob  : diff [B, T] f32,`); with several per line they are `logprob: diff [B, T] f32, ...`.
"""

from __future__ import annotations

from forgedsl.format.columns import is_padded, paddings
from forgedsl.format.doc import HARD, INDENT, WIDTH, Concat, Doc, Nest, Note, concat, flat_text
from forgedsl.format.expressions import Expressions
from forgedsl.format.notes import Beside
from forgedsl.syntax import ast

Row = list[int]  # indices of fields


def header(node: ast.FnDecl, printer: Expressions) -> Doc:
    """Return the head of a function: everything except its block."""
    opening = f"{node.kind} {node.name}("
    closing = ")" if node.result is None else f") -> {printer.type(node.result)}"
    spans = [(field.span.start, field.span.end) for field in node.fields]
    notes: list[Beside] = []
    after: tuple[str, ...] = ()
    if spans:
        close = _close(node, printer)
        notes, after = printer.notes.beside(spans, node.name_span.end, close)
    rows = _written_rows(node, printer)
    commented = bool(after) or any(n.above or n.behind for n in notes)
    flat = opening + ", ".join(_inline(f, printer) for f in node.fields) + closing
    follows = " {" if isinstance(node.body, ast.Block) else " ="
    if len(rows) > 1 or commented or (rows and len(flat) + len(follows) > WIDTH):
        lines = _lines(node, printer, _fitting(rows, node, printer), notes)
        lines += [part for text in after for part in (HARD, text)]
        head = concat(opening, Nest(Concat(tuple(lines))), HARD, closing)
    else:
        head = flat
    if isinstance(node.body, ast.Block):
        return head
    return concat(head, " = ", printer.value(node.body))


def _close(node: ast.FnDecl, printer: Expressions) -> int:
    """Return an offset after the fields and their comments."""
    last = node.fields[-1].span.end
    source = printer.notes.source
    if source is None:
        return last
    following = node.result.span.start if node.result is not None else node.body.span.start
    return max(last, following)


def _written_rows(node: ast.FnDecl, printer: Expressions) -> list[Row]:
    """Group fields by the line on which they begin."""
    rows: list[Row] = []
    line = -1
    for i, field in enumerate(node.fields):
        begins = printer.notes.line(field.span.start)
        if begins != line and (i == 0 or begins != printer.notes.line(node.fields[i - 1].span.end)):
            rows.append([])
        rows[-1].append(i)
        line = begins
    return rows


def _fitting(rows: list[Row], node: ast.FnDecl, printer: Expressions) -> list[Row]:
    """Split rows that are too long."""
    found: list[Row] = []
    for row in rows:
        column = WIDTH
        for i in row:
            width = len(_inline(node.fields[i], printer)) + 1
            if column + width + 1 > WIDTH or i == row[0]:
                found.append([])
                column = INDENT - 1
            found[-1].append(i)
            column += width + 1
    return found


def _lines(
    node: ast.FnDecl, printer: Expressions, rows: list[Row], notes: list[Beside]
) -> list[Doc]:
    """Return the fields, each row on a line of its own."""
    is_table = all(len(row) == 1 for row in rows)
    width = paddings([len(f.name) for f in node.fields])
    parts: list[Doc] = []
    for row in rows:
        for i in row:
            field = node.fields[i]
            for text in notes[i].above:
                parts += [HARD, text]
            if i == row[0] or notes[i].above or notes[i - 1].behind:
                parts.append(HARD)
            else:
                parts.append(" ")
            text = _inline(field, printer)
            if is_table:
                padded = is_padded(len(field.name), width)
                name = field.name.ljust(width) if padded else field.name
                text = f"{name} {text.removeprefix(field.name)}"
            parts.append(text + ",")
            if notes[i].behind:
                parts.append(Note(notes[i].behind or ""))
    return parts


def _inline(field: ast.Field, printer: Expressions) -> str:
    text = f"{field.name}: {printer.type(field.type)}"
    if field.default is None:
        return text
    return f"{text} = {flat_text(printer.inner(field.default)) or printer.flat(field.default)}"
