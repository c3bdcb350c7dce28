"""Lays out a document in at most WIDTH columns, after Wadler's "A prettier printer".

A document is a string or one of the nodes below. `Group` is printed on one line if it fits with
what follows it on that line, else its `Line`s become line ends; `Fill` breaks only where the next
item does not fit; `Bracket` chooses between filling behind its opening bracket and one level of
indentation. A `Note` (a trailing comment) takes no width: it leaves as NOTE + text and is moved
into its column when all lines are known (columns.py).
"""

from __future__ import annotations

from forgedsl.records import dataclass

WIDTH = 100
INDENT = 2
NOTE = "\0"  # a character that cannot occur in source text
_FAR_RIGHT = 48  # items of a bracket that opens beyond this column are indented instead of aligned


@dataclass(frozen=True, slots=True)
class Line:
    """A blank (`flat`) or a line end; `hard`: always a line end."""

    flat: str = " "
    hard: bool = False


@dataclass(frozen=True, slots=True)
class Concat:
    docs: tuple[Doc, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """Lines of `doc` are indented one level more."""

    doc: Doc


@dataclass(frozen=True, slots=True)
class Group:
    doc: Doc


@dataclass(frozen=True, slots=True)
class Choice:
    """`broken` in a group that is broken, else `flat`."""

    broken: str
    flat: str = ""


@dataclass(frozen=True, slots=True)
class Fill:
    """Items separated by blanks or, where the next one does not fit, by line ends."""

    docs: tuple[Doc, ...]


@dataclass(frozen=True, slots=True)
class Bracket:
    """`open item, item close`. `each`: every item on a line of its own (it has comments)."""

    open: str
    items: tuple[Doc, ...]
    close: str
    each: bool = False
    ends: tuple[Doc, ...] = ()  # what follows the comma of each item: notes


@dataclass(frozen=True, slots=True)
class Note:
    """A comment at the end of a line; a hard line follows."""

    text: str


Doc = str | Line | Concat | Nest | Group | Choice | Fill | Bracket | Note
HARD = Line("", hard=True)
_Command = tuple[int, bool, Doc]  # indentation, flat, document


def concat(*docs: Doc) -> Doc:
    """Concatenate documents."""
    return Concat(docs)


def flat_text(doc: Doc) -> str | None:
    """Return the document on one line; None if it contains a hard line end."""
    parts: list[str] = []
    stack: list[Doc] = [doc]
    while stack:
        top = stack.pop()
        match top:
            case str():
                parts.append(top)
            case Note():
                return None
            case Line():
                if top.hard:
                    return None
                parts.append(top.flat)
            case Concat():
                stack.extend(reversed(top.docs))
            case Nest() | Group():
                stack.append(top.doc)
            case Choice():
                parts.append(top.flat)
            case Fill():
                stack.extend(reversed(_separated(top.docs, " ")))
            case Bracket():
                if top.each:
                    return None
                stack.append(_flat_bracket(top))
    text = "".join(parts)
    return None if "\n" in text else text


def render(doc: Doc, *, indent: int) -> str:
    """Lay out `doc` starting at column `indent`. The first line is not indented."""
    out: list[str] = []
    column = indent
    stack: list[_Command] = [(indent, False, doc)]
    while stack:
        level, flat, top = stack.pop()
        match top:
            case str():
                out.append(top)
                column = len(top.rpartition("\n")[2]) + (column if "\n" not in top else 0)
            case Note():
                out.append(NOTE + top.text)
            case Line():
                if flat and not top.hard:
                    out.append(top.flat)
                    column += len(top.flat)
                else:
                    out.append("\n" + " " * level)
                    column = level
            case Concat():
                stack.extend((level, flat, d) for d in reversed(top.docs))
            case Nest():
                stack.append((level + INDENT, flat, top.doc))
            case Choice():
                out.append(top.flat if flat else top.broken)
                column += len(top.flat if flat else top.broken)
            case Group():
                fits = flat or _fits((level, True, top.doc), stack, WIDTH - column)
                stack.append((level, fits, top.doc))
            case Fill():
                _push_fill(stack, level, top.docs, column)
            case Bracket():
                fits = not top.each and (flat or _fits((level, True, top), stack, WIDTH - column))
                if fits:
                    stack.append((level, True, _flat_bracket(top)))
                else:
                    _push_bracket(stack, level, top, column)
    return "".join(out)


def _separated(docs: tuple[Doc, ...], separator: str) -> list[Doc]:
    return [part for doc in docs for part in (separator, doc)][1:]


def _flat_bracket(bracket: Bracket) -> Doc:
    return Concat((bracket.open, *_separated(bracket.items, ", "), bracket.close))


def _push_bracket(stack: list[_Command], level: int, bracket: Bracket, column: int) -> None:
    """Break a bracket that does not fit on the line."""
    items = bracket.items
    behind = column + len(bracket.open)
    if not bracket.each and behind <= _FAR_RIGHT:
        widths = [flat_text(item) for item in items]
        if all(text is not None and behind + len(text) + 1 <= WIDTH for text in widths):
            filled = Fill((*(concat(d, ",") for d in items[:-1]), concat(items[-1], bracket.close)))
            stack.append((behind, False, filled))
            stack.append((level, False, bracket.open))
            return
    if bracket.each:
        lines = [concat(HARD, d, ",", e) for d, e in zip(items, bracket.ends, strict=True)]
        body: Doc = Concat(tuple(lines))
    elif len(items) == 1:
        body = concat(HARD, items[0])
    else:
        body = concat(HARD, Fill(tuple(concat(d, ",") for d in items)))
    stack.append((level, False, concat(bracket.open, Nest(body), HARD, bracket.close)))


def _push_fill(stack: list[_Command], level: int, docs: tuple[Doc, ...], column: int) -> None:
    """Push the first item, then a blank or a line end, then the rest."""
    if not docs:
        return
    first, *rest = docs
    text = flat_text(first)
    fits = text is not None and column + len(text) <= WIDTH
    if rest:
        following = flat_text(rest[0])
        together = (
            fits
            and text is not None
            and following is not None
            and column + len(text) + 1 + len(following) <= WIDTH
        )
        stack.append((level, False, Fill(tuple(rest))))
        stack.append((level, together, Line() if together else HARD))
    stack.append((level, fits, first))


def _fits(command: _Command, rest: list[_Command], room: int) -> bool:
    """True if `command`, and what follows it up to the next line end, fits into `room` columns."""
    at = len(rest)
    stack = [command]
    while room >= 0:
        if not stack:
            if at == 0:
                return True
            at -= 1
            stack.append(rest[at])
        level, flat, top = stack.pop()
        match top:
            case str():
                if "\n" in top:
                    return len(top.partition("\n")[0]) <= room
                room -= len(top)
            case Note():
                return not flat
            case Line():
                if top.hard:
                    return not flat
                if not flat:
                    return True
                room -= len(top.flat)
            case Concat():
                stack.extend((level, flat, d) for d in reversed(top.docs))
            case Nest() | Group():
                stack.append((level, flat, top.doc))
            case Choice():
                room -= len(top.flat if flat else top.broken)
            case Fill():
                if not flat:
                    return True  # a fill breaks only where necessary
                stack.extend((level, flat, d) for d in reversed(_separated(top.docs, " ")))
            case Bracket():
                if top.each:
                    return not flat
                if not flat:
                    return room >= len(top.open)  # it may break after its opening bracket
                stack.append((level, flat, _flat_bracket(top)))
    return False
