"""Recovery from a syntax error: where to continue, and which bracket is wrong.

- `cut_back` drops parser states until one where an item of a block, or a declaration, may start;
- `end_of_statement` is where the next statement begins in the text;
- `unclosed_blocks` finds the `{` that has no `}`: an unindented declaration inside a block, or the
  end of the file, says where the `}` is missing;
- `slash_comments` finds comments that begin with `//`, which the language does not have;
- `too_deep` finds an expression too deep for the recursive passes.
"""

from __future__ import annotations

import re
from typing import Any

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Severity
from forgedsl.records import dataclass, fields
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast

OPAQUE = r'"""(?:[^"\\]|\\.|"(?!""))*"""|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"?|#[^\n]*'
_SCAN = re.compile(rf"{OPAQUE}|[{{}}\n]", re.DOTALL)
_SLASHES = re.compile(rf"{OPAQUE}|//[^\n]*", re.DOTALL)
_BRACKETS = re.compile(rf"{OPAQUE}|[{{}}()\[\]]", re.DOTALL)
_DECLARATION = re.compile(
    r"(?:param|require|import)\b|[A-Za-z_]\w*[ \t]+[A-Za-z_]\w*[ \t]*[:={(]"
    r"|profile\b|(?:cluster|schedule|checkpoint|logging|run|launcher)\b[^=\n]*\{"
)


def slash_comments(source: SourceFile) -> list[Diagnostic]:
    """Yield S001 for each `//` outside of strings and comments, with a fix that writes `#`."""
    found = []
    for match in _SLASHES.finditer(source.text):
        if not match[0].startswith("//"):
            continue
        span = Span(source.name, match.start(), match.start() + 2)
        before = source.text[: match.start()].rpartition("\n")[2].strip()
        divides = re.search(r"[-=(,+*/]\s*[\w.)]+$", before) and re.fullmatch(
            r"\s*[\w.]+\s*", match[0][2:]
        )
        edit = Edit(text="#", span=span)
        found.append(
            Diagnostic(
                code="S001",
                name="unexpected-token",
                severity=Severity.ERROR,
                message="write a comment with `#`",
                span=span,
                help="write a quotient as `a / b`" if divides else "",
                fix=Fix(message="write `#`", edits=(edit,), safe=not divides),
            )
        )
    return found


def without_comments(text: str, found: list[Diagnostic]) -> str:
    """Return the text with the comments that these diagnostics report blanked out."""
    for diagnostic in found:
        start = diagnostic.span.start
        line = text[start:].partition("\n")[0]
        text = text[:start] + " " * len(line) + text[start + len(line) :]
    return text


def begins_declaration(text: str, offset: int) -> bool:
    """True if a declaration starts at `offset`, in column 1, where no block can continue."""
    return text[offset - 1 : offset] in {"", "\n"} and _DECLARATION.match(text, offset) is not None


def cut_back(state: Any, *, to_top: bool = False) -> bool:
    """Pop parser states until a statement may start; True if that is inside a block."""
    base = statement_base(state, to_top=to_top)
    del state.state_stack[base + 1 :]
    del state.value_stack[base:]
    return base > 0 and "MINIMIZE" in state.parse_conf.states[state.state_stack[-1]]


def statement_base(state: Any, *, to_top: bool = False) -> int:
    """Return the number of stack values before the current statement, or with `to_top` before the
    current declaration."""
    states = state.parse_conf.states
    base = len(state.state_stack) - 1
    while base > 0:
        actions = states[state.state_stack[base]]
        if "PARAM" in actions or ("MINIMIZE" in actions and not to_top):
            return base
        base -= 1
    return 0


def end_of_statement(text: str, start: int, *, in_block: bool) -> int:
    """Return the offset after the line end of the statement around `start`, or that of the `}` that
    closes its block. Nested blocks are skipped."""
    depth = 0
    for match in _SCAN.finditer(text, start):
        char = match[0]
        if char == "{":
            depth += 1
        elif char == "}":
            if depth == 0 and in_block:
                return match.start()
            depth = max(depth - 1, 0)
        elif char == "\n" and depth == 0:
            first = text[match.end() : match.end() + 1]
            # an indented line belongs to the declaration above, as does one that closes its
            # brackets
            if in_block or first not in {" ", "\t", ")", "]"}:
                return match.end()
    return len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclosedBlock:
    """The `{` at `opened` lacks its `}`, which belongs before offset `close_before`. `evidence`
    says how this was found."""

    opened: int
    close_before: int
    evidence: str = ""

    def diagnostic(self, source: SourceFile) -> Diagnostic:
        """Return S003 with the place of the `{`, the evidence, and an edit that closes the
        block."""
        related: tuple[Label, ...] = ()
        if self.evidence:
            end = source.text.find("\n", self.close_before)
            line = source.text[self.close_before : end if end >= 0 else None]
            header = re.match(r"\w+", line)
            place = Span(
                source.name, self.close_before, self.close_before + (header.end() if header else 1)
            )
            related = (Label(text=self.evidence, span=place),)
        body = source.text[: self.close_before].rstrip()
        line_number, _ = source.position(len(body))
        insert = Span(source.name, len(body), len(body))
        fix = Fix(
            message=f"insert `}}` after line {line_number}",
            edits=(Edit(text="\n" + self._indent(source) + "}", span=insert),),
        )
        return Diagnostic(
            code="S003",
            name="unclosed-block",
            severity=Severity.ERROR,
            message="this block is never closed",
            span=Span(source.name, self.opened, self.opened + 1),
            label="opened here",
            related=related,
            fix=fix,
        )

    def _indent(self, source: SourceFile) -> str:
        return " " * _indentation(source.text, self.opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongBracket:
    """A `)` or `]` at `at` where a `}` should close the `{` at `opened`."""

    at: int
    opened: int

    def diagnostic(self, source: SourceFile) -> Diagnostic:
        """Return S017 with the place of the `{`, and an edit that writes `}`."""
        span = Span(source.name, self.at, self.at + 1)
        opened = Span(source.name, self.opened, self.opened + 1)
        return Diagnostic(
            code="S017",
            name="stray-bracket",
            severity=Severity.ERROR,
            message=f"`{source.text[self.at]}` does not close `{{`",
            span=span,
            related=(Label(text="opened here", span=opened),),
            fix=Fix(message="write `}`", edits=(Edit(text="}", span=span),)),
        )


def wrong_brackets(source: SourceFile) -> list[WrongBracket]:
    """Return the `)` and `]` that should be `}`, provided that all brackets then balance."""
    opened: list[tuple[str, int]] = []
    found: list[WrongBracket] = []
    for match in _BRACKETS.finditer(source.text):
        char = match[0]
        if char in {"{", "(", "["}:
            opened.append((char, match.start()))
        elif char in {"}", ")", "]"}:
            if not opened:
                return []
            opener, at = opened.pop()
            if opener == "{" and char != "}":
                found.append(WrongBracket(at=match.start(), opened=at))
            elif f"{opener}{char}" not in {"{}", "()", "[]"}:
                return []
    return [] if opened else found


def unclosed_blocks(source: SourceFile) -> list[UnclosedBlock]:
    """Return the blocks without `}`. Returns none if an unclosed string may hide braces."""
    text = source.text
    braces = [m for m in _SCAN.finditer(text) if m[0][0] in '{}\n"']
    num_open = sum(m[0] == "{" for m in braces)
    num_close = sum(m[0] == "}" for m in braces)
    open_string = any(m[0][0] == '"' and (len(m[0]) < 2 or m[0][-1] != '"') for m in braces)
    if num_open <= num_close or open_string:
        return []
    opened: list[int] = []
    found: list[UnclosedBlock] = []
    for match in braces:
        char = match[0]
        if char == "{":
            opened.append(match.start())
        elif char == "}" and opened:
            found += _outdented(text, opened, match.start())
            opened.pop()
        elif char == "\n" and opened and _DECLARATION.match(text, match.end()):
            evidence = "a declaration at column 1 cannot be inside a block"
            found += [
                UnclosedBlock(opened=o, close_before=match.end(), evidence=evidence)
                for o in reversed(opened)
            ]
            opened.clear()
    found += [UnclosedBlock(opened=o, close_before=len(text)) for o in reversed(opened)]
    return found


def _outdented(text: str, opened: list[int], close: int) -> list[UnclosedBlock]:
    """Pop the blocks that are indented deeper than the `}` at `close`, which closes an outer
    one."""
    line_start = text.rfind("\n", 0, close) + 1
    if text[line_start:close].strip():
        return []
    column = close - line_start
    found = []
    while len(opened) > 1 and _indentation(text, opened[-1]) > column:
        evidence = "the indentation of this `}` is that of the outer block"
        found.append(UnclosedBlock(opened=opened.pop(), close_before=close, evidence=evidence))
    return found


def _indentation(text: str, offset: int) -> int:
    """Return the number of leading blanks of the line at `offset`."""
    line_start = text.rfind("\n", 0, offset) + 1
    line = text[line_start:offset]
    return len(line) - len(line.lstrip())


def too_deep(root: ast.Node, limit: int) -> Span | None:
    """Return the span of the first expression nested more than `limit` levels. Does not recurse."""
    stack: list[tuple[Any, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, tuple):
            stack.extend((child, depth) for child in node)
        elif isinstance(node, ast.Node):
            if depth > limit:
                return node.span
            stack.extend((getattr(node, field.name), depth + 1) for field in fields(node))
    return None
