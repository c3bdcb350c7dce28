"""Context of the cursor, from the tokens left of it only, so that the rest of the text may be
incomplete.

    text, offset  ->  Context: open brackets with their headers, words of the statement, the word
                      that is being written

`service s : titan(m) { optimizer { lr = 1e-` is the blocks `service s : titan ()` and `optimizer`,
and the statement `lr =`.
"""

from __future__ import annotations

import re

from forgedsl.records import dataclass

TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|"""[\s\S]*|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"?|#[^\n]*'
    r"|[A-Za-z_]\w*|[0-9][\w.]*|\n|->|\.\.|[{}()\[\],=:.]|\S",
    re.S,
)
_WORD = re.compile(r"[A-Za-z_0-9]\w*\Z|[A-Za-z_0-9][\w.]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A bracket that is open, its offset, and the words before it."""

    bracket: str
    head: tuple[str, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Context of the cursor. `words` are those of the statement or argument before it, without the
    word at the cursor, which is `prefix` and begins at `start`. `inside` is "code", "string" or
    "comment"."""

    stack: tuple[Open, ...]
    words: tuple[str, ...]
    prefix: str
    start: int
    inside: str = "code"
    literal: str = ""
    """the string or comment up to the cursor"""

    @property
    def blocks(self) -> tuple[tuple[str, ...], ...]:
        """Headers of the enclosing blocks, outer ones first."""
        return tuple(opened.head for opened in self.stack if opened.bracket == "{")

    @property
    def is_value(self) -> bool:
        """True if the cursor is in a value: after `=`, or in parentheses."""
        return "=" in self.words or (bool(self.stack) and self.stack[-1].bracket != "{")

    @property
    def call(self) -> tuple[str, ...]:
        """Name of the enclosing call, as tokens with dots; () outside of a call."""
        if not self.stack or self.stack[-1].bracket != "(":
            return ()
        return trailing_path(self.stack[-1].head)


def context(text: str, offset: int) -> Context:
    """Return the context of an offset."""
    stack: list[tuple[str, list[str], int]] = []
    words: list[str] = []
    last = ""
    for match in TOKEN.finditer(text, 0, offset):
        token = last = match[0]
        if token[0] == "#" or (token[0] == '"' and match.end() == offset and _is_open(token)):
            if match.end() == offset:
                inside = "comment" if token[0] == "#" else "string"
                return _made(stack, words, "", offset, inside, token)
            continue
        if token in "{([":
            stack.append((token, words, match.start()))
            words = []
        elif token in "})]":
            if stack:
                words = [] if token == "}" else [*stack.pop()[1], "()"]
                if token == "}" and stack:
                    stack.pop()
        elif token in "\n,":
            if not stack or stack[-1][0] == "{" or token == ",":
                words = [] if stack or token == "\n" else words
        else:
            words.append(token)
    prefix = ""
    if last and (last[0].isalnum() or last[0] == "_") and text[:offset].endswith(last):
        prefix = words.pop()
    return _made(stack, words, prefix, offset - len(prefix), "code", "")


def _is_open(token: str) -> bool:
    """True if a string has no end yet."""
    if token.startswith('"""'):
        return len(token) < 6 or not token.endswith('"""')
    return len(token) < 2 or not token.endswith('"')


def _made(
    stack: list[tuple[str, list[str], int]],
    words: list[str],
    prefix: str,
    start: int,
    inside: str,
    literal: str,
) -> Context:
    opened = tuple(Open(bracket=each[0], head=tuple(each[1]), start=each[2]) for each in stack)
    return Context(
        stack=opened, words=tuple(words), prefix=prefix, start=start, inside=inside, literal=literal
    )


def trailing_path(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dotted name at the end of some words: (rl, k3) for `x = rl . k3`."""
    found: list[str] = []
    for word in reversed(words):
        if word == ".":
            continue
        if not (word[0].isalpha() or word[0] == "_"):
            break
        if found and words[len(words) - 2 * len(found)] != ".":
            break
        found.insert(0, word)
    return tuple(found)
