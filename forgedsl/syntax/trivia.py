"""Comments. They are not part of the tree; a separate scan finds them.

`comments` yields every comment with its place (for the formatter and for suppressions);
`doc_by_line` maps the line of a declaration to the `##` block directly above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span

# Literals and comments: a `#` in a string, or after an unclosed quote on its line, is no comment.
TOKENS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"?|#[^\n]*', re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment. `text` starts with `#`; `own_line` is True if only blanks stand before it on its
    line."""

    text: str
    own_line: bool
    span: Span


def comments(source: SourceFile) -> Iterator[Comment]:
    """Return all comments, in order."""
    text = source.text
    for match in TOKENS.finditer(text):
        if match[0].startswith("#"):
            line_start = text.rfind("\n", 0, match.start()) + 1
            yield Comment(
                text=match[0].rstrip("\r"),
                own_line=not text[line_start : match.start()].strip(),
                span=Span(source.name, match.start(), match.end()),
            )


def doc_by_line(source: SourceFile) -> dict[int, str]:
    """Map the line below each `##` block to the text of the block."""
    docs: dict[int, str] = {}
    if "##" not in source.text:
        return docs
    for comment in comments(source):
        if comment.own_line and comment.text.startswith("##"):
            line, _ = source.position(comment.span.start)
            text = comment.text[2:].strip()
            above = docs.pop(line, None)
            docs[line + 1] = text if above is None else f"{above}\n{text}"
    return docs
