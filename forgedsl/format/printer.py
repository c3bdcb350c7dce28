"""Prints a file as canonical text.

The author decides what stands on a line and where an empty line is; the printer decides all blanks,
the columns of `=`, `:`, `{` and comments, and how a line too long for WIDTH is broken. One-line
blocks that do not fit are opened. Opening a block or splitting a row changes which rows are
aligned. So the printer aligns and splits again until all lines fit. This ends, because each round
only adds lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.format.columns import is_padded, paddings, place_notes
from forgedsl.format.doc import INDENT, NOTE, WIDTH, concat, flat_text, render
from forgedsl.format.expressions import Expressions
from forgedsl.format.notes import Notes, comment_text
from forgedsl.format.pieces import Piece, piece
from forgedsl.records import dataclass, field, replace
from forgedsl.source import SourceFile
from forgedsl.syntax import ast

_TABLE_ITEMS = 2  # a line with more settings is not aligned with others


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of a body: the pieces on it, or a comment; `behind` is the comment at its end."""

    pieces: list[Piece] = field(default_factory=list)
    comment: str = ""
    behind: str = ""
    blank_before: bool = False
    end_line: int = 0
    is_open: bool = False  # its block is on several lines
    widths: tuple[int, ...] = ()


def format_source(source: SourceFile, file: ast.File) -> str:
    """Return the canonical text of `file`, parsed from `source`, with its comments."""
    return _Printer(Notes(source)).file(file)


def print_file(file: ast.File) -> str:
    """Return the canonical text of a tree without source (its spans are ignored)."""
    return _Printer(Notes(None)).file(file)


class _Printer:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.expressions = Expressions(notes)

    def file(self, file: ast.File) -> str:
        nodes: list[ast.Node] = [*([file.edition] if file.edition else []), *file.decls]
        end = 0 if self.notes.source is None else len(self.notes.source.text)
        rows, _ = self.rows(nodes, 0, end, own_lines=True)
        return place_notes("\n".join(self.lines(rows, 0))) + "\n"

    # ---- rows

    def rows(
        self, nodes: Sequence[ast.Node], start: int, end: int, *, own_lines: bool = False
    ) -> tuple[list[Row], str]:
        """Return the rows of a body, and the comment after its `{`."""
        rows: list[Row] = []
        opening = ""
        at = start
        for node in [*nodes, None]:
            for comment in self.notes.take(at, end if node is None else node.span.start):
                if comment.own_line:
                    line = self.notes.line(comment.span.start)
                    row = Row(comment=comment_text(comment), end_line=line)
                    row.blank_before = self._is_blank_before(rows, line)
                    rows.append(row)
                elif rows:
                    rows[-1].behind = comment_text(comment)
                else:
                    opening = comment_text(comment)
            if node is not None:
                self._add(rows, node, own_lines)
                at = node.span.end
        return rows, opening

    def _add(self, rows: list[Row], node: ast.Node, own_lines: bool) -> None:
        line = self.notes.line(node.span.start)
        new = piece(node, self.expressions)
        is_open = new.block is not None and self.is_open(new.block)
        last = rows[-1] if rows else None
        beside = last is not None and last.end_line == line and bool(last.pieces)
        if beside and last is not None and not (own_lines or is_open or last.is_open):
            last.pieces.append(new)
        else:
            blank = self._is_blank_before(rows, line)
            rows.append(Row(pieces=[new], blank_before=blank, is_open=is_open))
        self._put_above(rows, self._homeless(new))
        rows[-1].end_line = self.notes.line(node.span.end)

    def _is_blank_before(self, rows: list[Row], line: int) -> bool:
        return bool(rows) and line - rows[-1].end_line > 1

    def _put_above(self, rows: list[Row], comments: list[str]) -> None:
        """Put comments from inside of a statement above those that precede it, because the `##`
        lines of a declaration must stay directly above it."""
        if not comments:
            return
        at = len(rows) - 1
        while at and rows[at - 1].comment and not rows[at].blank_before:
            at -= 1
        new = [Row(comment=text) for text in comments]
        new[0].blank_before, rows[at].blank_before = rows[at].blank_before, False
        rows[at:at] = new

    def _homeless(self, new: Piece) -> list[str]:
        """Return the untaken comments of a statement. A `##` among them is rewritten, so that it
        does not become documentation."""
        end = new.node.span.end if new.block is None else new.block.span.start
        found = [comment_text(comment) for comment in self.notes.take(new.node.span.start, end)]
        return ["#" + text.lstrip("#") for text in found]

    def is_open(self, block: ast.Block) -> bool:
        """True if a block was written over several lines."""
        if self.notes.any_in(block.span.start, block.span.end):
            return True
        if not block.items:
            return False
        line = self.notes.line
        at = line(block.span.start)
        for item in block.items:
            if line(item.span.start) != at:
                return True
            inner = _block_of(item)
            if inner is not None and self.is_open(inner):
                return True
            at = line(item.span.end)
        return line(block.span.end) != at

    # ---- text

    def lines(self, rows: list[Row], indent: int) -> list[str]:
        """Return the lines of a body. Rows are opened and split until they fit."""
        while True:
            _align(rows)
            changed: list[Row] = []
            for row in rows:
                changed += self._fitted(row, indent)
            done = len(changed) == len(rows) and all(
                a is b for a, b in zip(changed, rows, strict=True)
            )
            rows = changed
            if done:
                break
        lines: list[str] = []
        for row in rows:
            if row.blank_before:
                lines.append("")
            text = row.comment or self._row(row, indent)
            behind = NOTE + row.behind if row.behind else ""
            lines.append(" " * indent + text + behind)
        return lines

    def _fitted(self, row: Row, indent: int) -> list[Row]:
        """Return the row if it fits; else the row with its block opened, or several rows."""
        if row.comment or row.is_open:
            return [row]
        if len(row.pieces) == 1:
            only = row.pieces[0]
            if only.block is None or self._fits(row, indent):
                return [row]
            return [replace(row, is_open=True)]
        if self._fits(row, indent):
            return [row]
        return self._split(row, indent)

    def _fits(self, row: Row, indent: int) -> bool:
        text = self._flat(row)
        return text is not None and indent + len(text) <= WIDTH

    def _split(self, row: Row, indent: int) -> list[Row]:
        """Split a row: settings share lines as far as they fit, blocks get lines of their own."""
        rows: list[Row] = []
        for new in row.pieces:
            room = Row(pieces=[*(rows[-1].pieces if rows else []), new])
            with_block = new.block is not None or (rows and rows[-1].pieces[-1].block is not None)
            if rows and not with_block and self._fits(room, indent + _reserve(room)):
                rows[-1].pieces.append(new)
            else:
                rows.append(Row(pieces=[new]))
        rows[0].blank_before = row.blank_before
        rows[-1].behind, rows[-1].end_line = row.behind, row.end_line
        return rows

    def _flat(self, row: Row) -> str | None:
        """Return the row on one line; None if that is impossible."""
        texts = []
        for i, new in enumerate(row.pieces):
            text = self._flat_piece(new, row.widths if i == 0 else ())
            if text is None:
                return None
            texts.append(text)
        return ", ".join(texts)

    def _flat_piece(self, new: Piece, widths: tuple[int, ...] = ()) -> str | None:
        rest = flat_text(new.rest)
        block = "" if new.block is None else self._flat_block(new.block)
        if rest is None or block is None:
            return None
        return " ".join(part for part in (*_padded(new, widths), rest, block) if part)

    def _flat_block(self, block: ast.Block) -> str | None:
        texts = [self._flat_piece(piece(item, self.expressions)) for item in block.items]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        return f"{{ {', '.join(known)} }}" if known else "{}"

    def _row(self, row: Row, indent: int) -> str:
        """Return the text of a row of pieces, without indentation of the first line."""
        if len(row.pieces) > 1:
            return self._flat(row) or ""
        only = row.pieces[0]
        head = "".join(f"{column} " for column in _padded(only, row.widths))
        block = only.block
        if block is None:
            return render(concat(head, only.rest), indent=indent)
        gap = " " if only.rest != "" else ""
        if not row.is_open:
            return render(
                concat(head, only.rest, gap, self._flat_block(block) or ""), indent=indent
            )
        was_open = self.is_open(block)
        rows, opening = self.rows(block.items, block.span.start, block.span.end)
        if not was_open:
            rows = [part for row in rows for part in self._split(row, indent + INDENT)]
        note = NOTE + opening if opening else ""
        text = render(concat(head, only.rest, gap, "{"), indent=indent) + note
        body = self.lines(rows, indent + INDENT)
        return "\n".join([text, *body, " " * indent + "}"])


def _reserve(row: Row) -> int:
    """Return the columns reserved for padding in a row of a table."""
    return 0 if len(row.pieces) > _TABLE_ITEMS else 8


def _block_of(item: ast.Node) -> ast.Block | None:
    return item.block if isinstance(item, ast.Nested | ast.Sync) else None


def _padded(new: Piece, widths: tuple[int, ...]) -> list[str]:
    columns = list(new.columns)
    for i, width in enumerate(widths[: len(columns)]):
        if is_padded(len(columns[i]), width):
            columns[i] = columns[i].ljust(width)
    return columns


# ---- alignment


def _align(rows: list[Row]) -> None:
    """Set the widths of all rows. An empty line, or a block on several lines, ends a table. The
    head of such a block is in no table."""
    group: list[Row] = []
    for row in rows:
        if row.blank_before:
            _align_group(group)
            group = []
        if row.is_open:
            row.widths = ()
            _align_group(group)
            group = []
        elif row.pieces:
            group.append(row)
    _align_group(group)


def _align_group(rows: list[Row]) -> None:
    tables: dict[str, list[Row]] = {}
    for row in rows:
        row.widths = ()
        table = row.pieces[0].table
        if table and len(row.pieces) <= _TABLE_ITEMS:
            tables.setdefault(table, []).append(row)
    for members in tables.values():
        columns = [row.pieces[0].columns for row in members]
        first = paddings([len(c[0]) for c in columns])
        inside = [c for c in columns if len(c) > 1 and is_padded(len(c[0]), first)]
        second = paddings([len(c[1]) for c in inside]) if inside else 0
        for row, own in zip(members, columns, strict=True):
            row.widths = (first, second) if is_padded(len(own[0]), first) else ()
