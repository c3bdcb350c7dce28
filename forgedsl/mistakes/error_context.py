"""Position at which the parser stopped: the token there, the allowed ones, the text before."""

from __future__ import annotations

import re
from typing import Any

from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.parsers.lalr_analysis import Shift

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Severity
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span

_TOKEN_TEXT = {
    "_NL": "the end of the line",
    "$END": "the end of the file",
    "STRING": "a string",
    "TEXT": "a string",
    "RAW": "a string",
    "INT": "a number",
    "NUMBER": "a number",
    "QUANTITY": "a number",
}
BRACKETS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"?|#[^\n]*|[()\[\]{}]', re.DOTALL
)
WINDOW = 400
"""maximum characters that patterns examine, because some take quadratic time"""
PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position at which the parser stopped: the token there and the text before it."""

    source: SourceFile
    start: int
    end: int
    kind: str  # token type; "" for a character with which no token starts
    text: str
    expected: frozenset[str]

    @property
    def span(self) -> Span:
        return Span(self.source.name, self.start, self.end)

    @property
    def before(self) -> str:
        """The line of the error up to the error; of a very long line, the last WINDOW
        characters."""
        start = self.source.text.rfind("\n", 0, self.start) + 1
        return self.source.text[max(start, self.start - WINDOW) : self.start]

    @property
    def previous(self) -> int:
        """Offset after the last character before the error that is not space or comment."""
        text = self.source.text
        at = self.start
        while True:
            while at and text[at - 1].isspace():
                at -= 1
            line_start = text.rfind("\n", 0, at) + 1
            comment = comment_start(text[line_start:at])
            if comment is None:
                return at
            at = line_start + comment

    def error(
        self,
        code: str,
        name: str,
        message: str,
        *,
        span: Span | None = None,
        label: str = "",
        help: str = "",
        related: tuple[Label, ...] = (),
        fix: Fix | None = None,
    ) -> Diagnostic:
        return Diagnostic(
            code=code,
            name=name,
            severity=Severity.ERROR,
            message=message,
            span=span or self.span,
            label=label,
            help=help,
            related=related,
            fix=fix,
        )

    def replace_by(self, text: str, message: str) -> Fix:
        return Fix(message=message, edits=(Edit(text=text, span=self.span),))


def comment_start(line: str) -> int | None:
    if "#" not in line:
        return None
    for match in BRACKETS.finditer(line):
        if match[0].startswith("#"):
            return match.start()
    return None


def place_of(error: UnexpectedInput, source: SourceFile) -> Place:
    if isinstance(error, UnexpectedToken):
        token = error.token
        if token.type == "$END":
            end = len(source.text.rstrip())
            start, end, text = end, min(end + 1, len(source.text)), ""
        else:
            start, end, text = token.start_pos or 0, token.end_pos or 0, str(token)
        if token.type == "_NL":
            end = start + 1
        kind = token.type
        interactive: Any = error.interactive_parser
        expected = acceptable(interactive.parser_state)
    else:
        start = error.pos_in_stream or 0
        end, text, kind, expected = start + 1, source.text[start], "", frozenset()
    return Place(source=source, start=start, end=end, kind=kind, text=text, expected=expected)


def open_bracket(place: Place) -> tuple[int, str] | None:
    """Return the innermost bracket that is open at the error."""
    stack: list[tuple[int, str]] = []
    for match in BRACKETS.finditer(place.source.text, 0, place.start):
        char = match[0]
        if char in "([{":
            stack.append((match.start(), char))
        elif char in PAIRS and stack and stack[-1][1] == PAIRS[char]:
            stack.pop()
    return stack[-1] if stack else None


def describe(place: Place) -> str:
    return _TOKEN_TEXT.get(place.kind) or f"`{place.text}`"


def acceptable(state: Any) -> frozenset[str]:
    """Return the terminals that the parser can actually shift here; its table lists more.

    Terminals with the same reductions share a stack, and a state that comes again is not looked up
    again: after 6,000 open operators there are as many reductions."""
    states, end = state.parse_conf.states, state.parse_conf.end_state
    good: set[str] = set()
    first = [*state.state_stack]
    todo = [(first, frozenset(name for name in states[first[-1]] if name.isupper()))]
    known: dict[tuple[Any, frozenset[str]], list[tuple[Any, frozenset[str]]]] = {}
    while todo:
        stack, terminals = todo.pop()
        while True:
            if stack[-1] == end:
                good |= terminals
                break
            key = (stack[-1], terminals)
            if key not in known:
                known[key] = _reductions(states[stack[-1]], terminals, good)
            if not known[key]:
                break
            (rule, taken), *others = known[key]
            todo += [
                (after, some)
                for other, some in others
                if (after := _reduced([*stack], other, states)) is not None
            ]
            if _reduced(stack, rule, states) is None:
                break
            terminals = taken
    return frozenset(good)


def _reductions(
    row: dict[str, Any], terminals: frozenset[str], good: set[str]
) -> list[tuple[Any, frozenset[str]]]:
    """Add the terminals that are shifted in a state of the parser to `good`; return the rules that
    the others reduce by, each with its terminals."""
    rules: dict[int, tuple[Any, set[str]]] = {}
    for terminal in terminals & row.keys():
        kind, argument = row[terminal]
        if kind is Shift:
            good.add(terminal)
        else:
            rules.setdefault(id(argument), (argument, set()))[1].add(terminal)
    return [(rule, frozenset(some)) for rule, some in rules.values()]


def _reduced(stack: list[Any], rule: Any, states: Any) -> list[Any] | None:
    """Reduce a stack by a rule, in place; None if the parser has no state for it."""
    if rule.expansion:
        del stack[-len(rule.expansion) :]
    goto = states[stack[-1]].get(rule.origin.name)
    if goto is None:
        return None
    stack.append(goto[1])
    return stack
