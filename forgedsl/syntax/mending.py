"""Completes the statement in which the parser stopped, so that its correct beginning is kept.

    x = f(a +        the parser stops at the line's end; a placeholder and `)` finish the statement
    x = 1 {          the statement is complete; the rest of the line is skipped

`mend` changes the stack of Lark's parser and returns where to continue. If it cannot, it leaves the
stack alone, and the statement is dropped (recovery.py). Placeholders are `none` and the empty name,
both of width 0.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from lark import Token, Tree

from forgedsl.mistakes.error_context import acceptable
from forgedsl.records import dataclass
from forgedsl.syntax import ast
from forgedsl.syntax.recovery import OPAQUE, statement_base

_SKIPPED = re.compile(rf"{OPAQUE}|[{{}}\n]", re.DOTALL)
_BLANK = re.compile(r"[ \t]*(?:#[^\n]*)?(?=\n|\Z)")
_CLOSERS = {"RPAR": ")", "RSQB": "]"}
_OPENERS = frozenset({"LPAR", "LSQB"})
_DANGLING = frozenset({"DOT", "AS"})
_MAY_FOLLOW = frozenset({"_NL", "RBRACE", "LBRACE", "RPAR", "RSQB", "COMMA"})
_MAX_STEPS = 12
_WINDOW = 400  # characters before a brace that are examined
_BY_LETTER = {")": "RPAR", "]": "RSQB", ",": "COMMA", "(": "LPAR", "[": "LSQB", "=": "EQUAL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """Place to continue reading, and the text that was skipped."""

    resume: int
    skipped: tuple[int, int] = (0, 0)


def mend(state: Any, text: str, kind: str, start: int) -> Mended | None:
    """Complete the statement in which the parser stopped at `start`, at a token of `kind` ("" where
    no token begins). None if it cannot be completed."""
    if kind != "_NL" and _is_last(text, start, kind) and _goes_on(state, text, start):
        return _passed_over(start, text.find("\n", start))
    if kind not in _CLOSERS and _drop_item(state, text, start):
        return _passed_over(start, text.find("\n", start))
    states, values = list(state.state_stack), list(state.value_stack)
    boundary = _boundary(state, text, start)
    if boundary is not None:
        kind, start = "_NL", boundary
        while len(state.value_stack) and _end(state.value_stack[-1]) > boundary:
            state.state_stack.pop()
            state.value_stack.pop()
    if boundary is None or len(state.state_stack) > statement_base(state) + 1:
        if _finish(state, kind):
            return Mended(resume=start)
        if "_NL" in acceptable(state):
            return _passed_over(start, _end_of_skipped_text(text, start, in_block=_in_block(state)))
    state.state_stack[:], state.value_stack[:] = states, values
    return None


def close_all(state: Any, offset: int) -> None:
    """Close the blocks that are open at the end of a text, so that it can be parsed to its end."""
    for _ in range(len(state.state_stack)):
        good = acceptable(state)
        kind = "RBRACE" if "RBRACE" in good else "_NL" if _in_block(state) else ""
        if kind not in good:
            return
        state.feed_token(Token(kind, "}" if kind == "RBRACE" else "\n", offset, end_pos=offset))


def finished(state: Any) -> tuple[ast.Decl, ...]:
    """The declarations that were complete when a parse was given up."""
    found: list[ast.Decl] = []
    for value in state.value_stack:
        children = value.children if isinstance(value, Tree) else [value]
        found += [child for child in children if isinstance(child, ast.Decl)]
    return tuple(found)


def open_brackets(state: Any) -> tuple[list[int], int]:
    """Return the counts that the newline filter keeps: per open brace the parentheses open outside
    of it, and those open inside the innermost brace."""
    parens: list[int] = []
    depth = 0
    for value in state.value_stack:
        kind = value.type if isinstance(value, Token) else ""
        if kind == "LBRACE":
            parens.append(depth)
            depth = 0
        elif kind == "RBRACE":
            depth = parens.pop() if parens else 0
        elif kind in _OPENERS or kind in _CLOSERS:  # closed ones count too: the header continues
            depth += 1 if kind in _OPENERS else -1
    return parens, depth


def _finish(state: Any, wanted: str) -> bool:
    """Feed missing tokens until a token of kind `wanted` can follow; True if it can. Otherwise the
    stack is left at the last point where the statement could end."""
    ended: tuple[list[Any], list[Any]] | None = None
    for _ in range(_MAX_STEPS):
        good = acceptable(state)
        if wanted in _MAY_FOLLOW and wanted in good:
            return True
        if "_NL" in good and ended is None:
            ended = list(state.state_stack), list(state.value_stack)
        last = state.value_stack[-1] if state.value_stack else None
        at = _end(last)
        dangling = isinstance(last, Token) and last.type in _DANGLING
        closer = next((kind for kind in _CLOSERS if kind in good), None)
        if dangling:
            state.state_stack.pop()
            state.value_stack.pop()
        elif ended is not None:
            break
        elif closer is not None:
            state.feed_token(Token(closer, _CLOSERS[closer], at, end_pos=at))
        elif "NONE" in good:
            state.feed_token(Token("NONE", "none", at, end_pos=at))
        elif "NAME" in good and isinstance(last, Token) and last.type == "COLON":
            state.feed_token(Token("NAME", "", at, end_pos=at))
        else:
            break
    if ended is not None:
        state.state_stack[:], state.value_stack[:] = ended
    return False


def _boundary(state: Any, text: str, start: int) -> int | None:
    """Return the line end before which a bracket should have been closed: the next line is not
    indented deeper than the statement and starts with no closing bracket."""
    opened = _opened(state)
    if not opened:
        return None
    column = _indentation(text, _start(state.value_stack[statement_base(state)]))
    at = text.find("\n", opened[-1].end_pos or 0)
    while 0 <= at < start:
        line = re.compile(r"([ \t]*)([^\s#)\]}])").match(text, at + 1)
        if line is not None and len(line[1]) <= column:
            return at - 1 if text[at - 1 : at] == "\r" else at
        at = text.find("\n", at + 1)
    return None


def _opened(state: Any) -> list[Token]:
    """Return the parentheses that are open in the current statement."""
    opened: list[Token] = []
    for value in state.value_stack[statement_base(state) :]:
        kind = value.type if isinstance(value, Token) else ""
        if kind in _OPENERS:
            opened.append(value)
        elif kind in _CLOSERS and opened:
            opened.pop()
    return opened


def _is_last(text: str, start: int, kind: str) -> bool:
    """True if the token at `start` is the last of its line. An unclosed string extends to the line
    end."""
    at = start + 1 if kind else text.find("\n", start)
    return at >= 0 and _BLANK.match(text, at) is not None


def _goes_on(state: Any, text: str, start: int) -> bool:
    """True if, inside of parentheses, the next line can follow when the rest of this one is
    skipped."""
    line_end = text.find("\n", start)
    opened = _opened(state)
    if line_end < 0 or not opened:
        return False
    at = re.compile(r"(?:\s|#[^\n]*)*").match(text, line_end)
    following = text[at.end() : at.end() + 1] if at is not None else ""
    kind = "NAME" if following.isidentifier() else _BY_LETTER.get(following, "")
    first = _start(state.value_stack[statement_base(state)])
    deeper = at is not None and _indentation(text, at.end()) > _indentation(text, first)
    return (deeper or kind in _CLOSERS) and kind in acceptable(state)


def _drop_item(state: Any, text: str, start: int) -> bool:
    """Pop an incomplete list item from the stack if the list in parentheses continues on the next
    line."""
    opened = _opened(state)
    if not opened:
        return False
    states, values = list(state.state_stack), list(state.value_stack)
    while not (isinstance(values[-1], Token) and values[-1].type in {"COMMA", *_OPENERS}):
        if "\n" in text[_start(values[-1]) : start] or values[-1] is opened[-1]:
            return False
        states.pop()
        values.pop()
    before = list(state.state_stack), list(state.value_stack)
    state.state_stack[:], state.value_stack[:] = states, values
    if _goes_on(state, text, start):
        return True
    state.state_stack[:], state.value_stack[:] = before
    return False


def _end_of_skipped_text(text: str, start: int, *, in_block: bool) -> int:
    """Return the offset of the line end, or of the `}` that closes the block. Nested blocks on the
    way are skipped."""
    at = start
    while True:
        found = _SKIPPED.search(text, at)
        if found is None:
            return len(text)
        if found[0] == "\n":
            begin = found.start()
            return begin - 1 if text[begin - 1 : begin] == "\r" else begin
        if found[0] == "}" and in_block:
            return found.start()
        at = _end_of_block(text, found.start()) if found[0] == "{" else found.end()


def _end_of_block(text: str, opened: int) -> int:
    """Return the offset after the block at `opened`. If the brace opens no block (its lines are not
    indented, or its `}` is not under the header), return the offset after the brace."""
    close = _braces(text).get(opened)
    before = text[max(opened - _WINDOW, 0) : opened].rstrip()
    if close is None or before.endswith("{"):
        return opened + 1
    line_end = text.find("\n", opened)
    if line_end < 0 or close < line_end:
        return close + 1
    column = _indentation(text, opened)
    under = _indentation(text, close) == column and _starts_line(text, close)
    body = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*([ \t]*)").match(text, line_end + 1)
    deeper = body is not None and len(body[1]) > column
    return close + 1 if under and deeper else opened + 1


@functools.lru_cache(maxsize=2)
def _braces(text: str) -> dict[int, int]:
    """Map the offset of each `{` to that of its `}`."""
    opened: list[int] = []
    found: dict[int, int] = {}
    for match in _SKIPPED.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            found[opened.pop()] = match.start()
    return found


def _starts_line(text: str, offset: int) -> bool:
    return not text[max(text.rfind("\n", 0, offset) + 1, offset - _WINDOW) : offset].strip()


def _passed_over(start: int, end: int) -> Mended:
    return Mended(resume=end, skipped=(start, end))


def _in_block(state: Any) -> bool:
    return bool(open_brackets(state)[0])


def _indentation(text: str, offset: int) -> int:
    begin = text.rfind("\n", 0, offset) + 1
    line = text[begin : min(offset, begin + _WINDOW)]
    return len(line) - len(line.lstrip())


def _start(value: Any) -> int:
    """Return the offset at which a value of the parser's stack begins."""
    if isinstance(value, Token):
        return value.start_pos or 0
    if isinstance(value, ast.Node):
        return value.span.start
    children = value.children if isinstance(value, Tree) else value or ()
    return min((_start(child) for child in children if child is not None), default=0)


def _end(value: Any) -> int:
    """Return the offset at which a value of the parser's stack ends."""
    if isinstance(value, Token):
        return value.end_pos or 0
    if isinstance(value, ast.Node):
        return value.span.end
    children = value.children if isinstance(value, Tree) else value or ()
    return max((_end(child) for child in children if child is not None), default=0)
