"""Finding the way back after a syntax error.

- `cut_back` drops parser states until one where an item of a block, or a declaration, may start;
- `end_of_statement` is where the next statement begins in the text;
- `unclosed_blocks` finds the `{` that has no `}`: an unindented declaration inside a block, or the
  end of the file, says where the `}` is missing;
- `too_deep` finds an expression too deep for the recursive passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Severity
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast

_SCAN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"?|#[^\n]*|[{}\n]', re.DOTALL
)
_DECLARATION = re.compile(
    r"(?:param|require|import)\b|[A-Za-z_]\w*[ \t]+[A-Za-z_]\w*[ \t]*[:={(]"
    r"|profile\b|(?:cluster|schedule|checkpoint|logging|run|launcher)\b[^=\n]*\{"
)


def cut_back(state: Any) -> bool:
    """Pop parser states until a statement may start; True if that is inside a block."""
    states = state.parse_conf.states
    while len(state.state_stack) > 1:
        actions = states[state.state_stack[-1]]
        if "MINIMIZE" in actions:
            return True
        if "PARAM" in actions:
            return False
        state.state_stack.pop()
        state.value_stack.pop()
    return False


def end_of_statement(text: str, start: int, *, in_block: bool) -> int:
    """The offset after the line end that closes the statement around `start`, or of the `}` that
    closes its block. Blocks on the way are skipped whole."""
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
            return match.end()
    return len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclosedBlock:
    """The `{` at `opened`; a `}` is missing before offset `close_before`."""

    opened: int
    close_before: int
    at_end: bool

    def diagnostic(self, source: SourceFile) -> Diagnostic:
        """S003 with the place of the `{`, the evidence, and the edit that closes the block."""
        related: tuple[Label, ...] = ()
        if not self.at_end:
            end = source.text.find("\n", self.close_before)
            line = source.text[self.close_before : end if end >= 0 else None]
            header = re.match(r"[\w \t]*\w", line)
            length = header.end() if header else 1
            place = Span(source.name, self.close_before, self.close_before + length)
            text = "a declaration at column 1 cannot be inside a block"
            related = (Label(text=text, span=place),)
        body = source.text[: self.close_before].rstrip()
        line_number, _ = source.position(len(body))
        insert = Span(source.name, len(body), len(body))
        fix = Fix(
            message=f"insert `}}` after line {line_number}", edits=(Edit(text="\n}", span=insert),)
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


def unclosed_blocks(source: SourceFile) -> list[UnclosedBlock]:
    """The blocks without `}`, if braces do not balance."""
    text = source.text
    opened: list[int] = []
    found: list[UnclosedBlock] = []
    stray = 0
    for match in _SCAN.finditer(text):
        char = match[0]
        if char == "{":
            opened.append(match.start())
        elif char == "}":
            if opened:
                opened.pop()
            else:
                stray += 1
        elif char == "\n" and opened and _DECLARATION.match(text, match.end()):
            found.extend(
                UnclosedBlock(opened=o, close_before=match.end(), at_end=False)
                for o in reversed(opened)
            )
            opened.clear()
    if stray and not opened:
        return []  # the file is written without indentation; nothing is missing
    found.extend(
        UnclosedBlock(opened=o, close_before=len(text), at_end=True) for o in reversed(opened)
    )
    return found


def too_deep(root: ast.Node, limit: int) -> Span | None:
    """The span of the first expression nested more than `limit` levels, without recursion."""
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
