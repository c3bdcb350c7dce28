"""The full rendering: header, place, source lines with labels under them, notes, help, fix.

    error[F101]: undefined name `epss`
      --> pipelines/grpo_math.forge:70:36
       |
    70 |   pg = -min(ratio * adv, clip(ratio, 1 - epss, 1 + eps) * adv)
       |                                          ^^^^
       = help: did you mean `eps`?

Labels are drawn below their line; several labels of a line are drawn from right to left, each with
a bar up to its column. A tab in a label starts a second column that the labels of a line share. If
a finding has a table, its rows replace the source line. Columns count characters; tabs are shown as
spaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.records import dataclass, replace
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile, Span

TAB = 4
GAP = 3
"""spaces before the second column of labels"""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A label on one line: display columns `start` to `end`, `^` if primary."""

    start: int
    end: int
    text: str
    primary: bool


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """Render all diagnostics, separated by blank lines."""
    return "\n\n".join(render_one(d, sources, style) for d in diagnostics)


def render_one(
    diagnostic: Diagnostic, sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """Render a diagnostic, without a final newline."""
    head = style.severity(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity)
    lines = [f"{head}{style.bold(': ' + diagnostic.message)}"]
    places = [(diagnostic.span, diagnostic.label, True)]
    places += [(label.span, label.text, False) for label in diagnostic.related[:3]]
    places = [place for place in places if place[0].file in sources]
    width = _gutter_width(places, sources)
    pad = " " * width
    if diagnostic.table:
        lines.append(_arrow(places[0][0], sources, width, style))
        rows = table_rows(diagnostic, sources)
        lines += [f"{pad} {style.frame('|')}{row}".rstrip() for row in rows]
    else:
        lines += _snippets(places, sources, width, style)
    bar = style.frame("=")
    for note in diagnostic.notes:
        lines.append(f"{pad} {bar} note: {note}")
    if diagnostic.profiles:
        names = ", ".join(diagnostic.profiles)
        plural = "s" if len(diagnostic.profiles) > 1 else ""
        lines.append(f"{pad} {bar} note: under profile{plural} {names}")
    if diagnostic.help:
        lines.append(f"{pad} {bar} {style.help('help')}: {diagnostic.help}")
    if diagnostic.fix is not None:
        safe = diagnostic.fix.safe
        head = style.help(f"fix ({'safe' if safe else 'unsafe'})")
        more = (
            "" if safe or diagnostic.code[0] in "FS" else f"      forgec explain {diagnostic.code}"
        )
        lines.append(f"{pad} {bar} {head}: {diagnostic.fix.message}{more}")
    return "\n".join(lines)


_Place = tuple[Span, str, bool]


def _gutter_width(places: list[_Place], sources: Mapping[str, SourceFile]) -> int:
    numbers = [
        sources[s.file].position(min(s.start, len(sources[s.file].text)))[0] for s, _, _ in places
    ]
    return len(str(max(numbers, default=1)))


def table_rows(diagnostic: Diagnostic, sources: Mapping[str, SourceFile]) -> list[str]:
    """Return the rows of a finding's table as text."""
    rows = []
    for row in diagnostic.table:
        if isinstance(row, str):
            rows.append(row)
            continue
        source = sources[row.span.file]
        line = source.position(row.span.start)[0]
        rows.append(f"{row.text}    line {line}" if row.text else f"  {source.line(line)}")
    return rows


def _arrow(span: Span, sources: Mapping[str, SourceFile], width: int, style: Style) -> str:
    source = sources[span.file]
    line, column = source.position(min(span.start, len(source.text)))
    return f"{' ' * width}{style.frame('-->')} {span.file}:{line}:{column}"


def _snippets(
    places: list[_Place], sources: Mapping[str, SourceFile], width: int, style: Style
) -> list[str]:
    """Return, for each file in order of first mention, its place, then its lines with their
    marks."""
    lines: list[str] = []
    for number, file in enumerate(dict.fromkeys(span.file for span, _, _ in places)):
        source = sources[file]
        here = [place for place in places if place[0].file == file]
        first_line, first_column = source.position(min(here[0][0].start, len(source.text)))
        arrow = style.frame("-->" if number == 0 else ":::")
        lines.append(f"{' ' * width}{arrow} {file}:{first_line}:{first_column}")
        if not source.text.strip():
            continue
        marks: dict[int, list[_Mark]] = {}
        for span, text, primary in here:
            line, mark = _mark(source, span, text, primary)
            marks.setdefault(line, []).append(mark)
        if len(marks) == 1:
            lines.append(f"{' ' * width} {style.frame('|')}")
        for line in sorted(marks):
            lines += _marked_line(source.line(line), line, marks[line], width, style)
    return lines


def _mark(source: SourceFile, span: Span, text: str, primary: bool) -> tuple[int, _Mark]:
    start = min(span.start, len(source.text))
    line, column = source.position(start)
    content = source.line(line)
    end_column = min(column + max(span.end - start, 1), max(len(content) + 1, column + 1))
    begin = _display(content[: column - 1])
    end = max(_display(content[: end_column - 1]), begin + 1)
    return line, _Mark(begin, end, text, primary)


def _display(text: str) -> int:
    """Return the number of terminal columns of `text`."""
    import unicodedata

    columns = 0
    for char in text:
        if char == "\t":
            columns += TAB
        elif unicodedata.east_asian_width(char) in "WF":
            columns += 2
        elif not unicodedata.combining(char):
            columns += 1
    return columns


def _printable(text: str) -> str:
    """Replace tabs by spaces, and control characters by visible ones."""
    text = text.replace("\t", " " * TAB)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _marked_line(
    content: str, line: int, marks: list[_Mark], width: int, style: Style
) -> list[str]:
    bar = style.frame("|")
    pad = " " * width
    number = style.frame(f"{line:>{width}}")
    lines = [f"{number} {bar} {_printable(content)}".rstrip()]
    ordered = _aligned(_drawn(marks))
    under = [" "] * max(mark.end for mark in ordered)
    for mark in sorted(ordered, key=lambda m: m.primary):
        under[mark.start : mark.end] = ("^" if mark.primary else "-") * (mark.end - mark.start)
    row = "".join(under)
    last = ordered[-1]
    rest = [mark for mark in ordered[:-1] if mark.text]
    if last.text:
        row = f"{row} {last.text}"
    lines.append(f"{pad} {bar} {_coloured(row, style)}".rstrip())
    while rest:
        bars = [" "] * (rest[-1].start + 1)
        for mark in rest:
            bars[mark.start] = "|"
        if len(rest) == len([m for m in ordered[:-1] if m.text]):
            lines.append(f"{pad} {bar} {''.join(bars)}")
        mark = rest.pop()
        text = "".join(bars[: mark.start]) + mark.text
        lines.append(f"{pad} {bar} {text}")
    return lines


def _drawn(marks: list[_Mark]) -> list[_Mark]:
    """Return the marks in order of column. A mark without a label that contains labelled ones is
    left out."""
    ordered = sorted(marks, key=lambda m: (m.start, not m.primary))
    whole = next((m for m in ordered if m.primary and not m.text), None)
    if whole is None:
        return ordered
    parts = [m for m in ordered if m is not whole and whole.start <= m.start and m.end <= whole.end]
    return [m for m in ordered if m is not whole] if len(parts) > 1 else ordered


def _aligned(marks: list[_Mark]) -> list[_Mark]:
    """Align the second columns of labels."""
    if not any("\t" in mark.text for mark in marks):
        return marks
    end_of_marks = max(mark.end for mark in marks)
    starts = [end_of_marks + 1 if mark is marks[-1] else mark.start for mark in marks]
    halves = [mark.text.partition("\t") for mark in marks]
    column = max(start + len(half[0]) for start, half in zip(starts, halves, strict=True)) + GAP
    return [
        replace(mark, text=left.ljust(column - start) + right if right else left)
        for mark, start, (left, _, right) in zip(marks, starts, halves, strict=True)
    ]


def _coloured(row: str, style: Style) -> str:
    return style.severity(row, "error") if "^" in row else style.frame(row)
