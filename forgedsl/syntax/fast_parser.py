"""Text -> AST for files without mistakes: an LALR parser over Lark's tables, without Lark.

    text --one regular expression--> tokens --tables--> builder's methods --> AST

It builds the same tree as Lark, or gives up without a message. Then recovering_parser.py reads the
file again with Lark, which finds and explains every mistake. A word is a keyword if the parser's
state accepts that keyword, else a name. Newlines count outside of () and [] only.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

from forgedsl.source import Span
from forgedsl.syntax import tables
from forgedsl.syntax.build import Builder

MAX_NESTING = 64
# tokens of a statement; a file with a longer one is checked for depth after the parse
LONG_STATEMENT = 400

_TOKEN = re.compile(
    r"[ \t]*(?:(\n(?:[ \t]|\r?\n)*|\r\n(?:[ \t]|\r?\n)*)|([A-Za-z_]\w*)|([()\[\]{},:]|=(?!=))"
    r"|([0-9][0-9_]*(?:\.[0-9]+)?(?:ms|s|min|h|d|KiB|MiB|GiB|TiB|k|M)(?![A-Za-z0-9_]))"
    r"|([0-9][0-9_]*(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))|([0-9][0-9_]*)"
    r"|(->|\*\*|[=!<>]=|[-+*/%<>.])"
    r'|("""(?:[^"\\]|\\[\s\S]|"(?!""))*""")|("(?!"")(?:[^"\\\n]|\\.)*")|(#[^\n]*))',
    re.ASCII,
)
_NEWLINE, _WORD, _MARK, _QUANTITY, _NUMBER, _INT, _OPERATOR, _TEXT, _STRING, _COMMENT = range(1, 11)
_TYPES = {
    _QUANTITY: "QUANTITY", _NUMBER: "NUMBER", _INT: "INT", _TEXT: "TEXT", _STRING: "STRING",
}  # fmt: skip
_MARKS = {
    "(": "LPAR", ")": "RPAR", "[": "LSQB", "]": "RSQB", "{": "LBRACE", "}": "RBRACE",
    ",": "COMMA", "=": "EQUAL", ":": "COLON",
}  # fmt: skip
_OPERATORS = {
    "->": "ARROW", "**": "POW", "==": "CMP", "!=": "CMP", "<=": "CMP", ">=": "CMP",
    "<": "CMP", ">": "CMP", "+": "SUM", "-": "SUM", "*": "PROD", "/": "PROD", "%": "PROD",
    ".": "DOT",
}  # fmt: skip


class Token:
    """A piece of text, as the builder reads it."""

    __slots__ = ("end_pos", "start_pos", "value")

    def __init__(self, value: str, start_pos: int, end_pos: int) -> None:
        self.value = value
        self.start_pos = start_pos
        self.end_pos = end_pos

    def __str__(self) -> str:
        return self.value


class _GiveUpError(Exception):
    """The text has a mistake, or nests too deep for this parser."""


def parse(text: str, name: str, start: str) -> Any:
    """Parse `text`; None if it has a mistake or may nest too deep."""
    builder = Builder()
    builder.file = name
    builder.on_error = _on_error
    collects = gc.isenabled()
    # a parse makes no reference cycles; garbage collection would take longer than the parse itself
    gc.disable()
    try:
        return _Machine(builder, start).run(text)
    except _GiveUpError:
        return None
    finally:
        if collects:
            gc.enable()


def _on_error(code: str, name: str, message: str, span: Span, help: str) -> None:
    raise _GiveUpError


def _nest(mark: str, parens: list[int], depth: int) -> int:
    """Return the depth of () and [] after `mark`. `parens` holds, for each open brace, the depth
    outside of it."""
    if mark in "([{":
        if len(parens) + depth >= MAX_NESTING:
            raise _GiveUpError
        if mark != "{":
            return depth + 1
        parens.append(depth)
        return 0
    if mark == "}":
        return parens.pop() if parens else 0
    return depth - 1 if mark in ")]" and depth else depth


class _Machine:
    """State stack and value stack of one parse."""

    def __init__(self, builder: Builder, start: str) -> None:
        self.tables = tables.load()
        self.states: list[int] = [self.tables.starts[start]]
        self.values: list[Any] = []
        self.end = self.tables.ends[start]
        self.lone = [
            rule.is_single and rule.size == 1 and rule.parts is None and not rule.absent
            for rule in self.tables.rules
        ]
        self.chains: dict[tuple[int, int, str], int] = {}
        self.callbacks: list[Callable[[list[Any]], Any] | None] = [
            None if rule.callback is None else getattr(builder, rule.callback, None)
            for rule in self.tables.rules
        ]

    def run(self, text: str) -> Any:
        self._tokens(text)
        self._feed("$END", None)
        if self.states[-1] != self.end:
            raise _GiveUpError
        return self.values[-1]

    def _tokens(self, text: str) -> None:
        """Feed every token. Newlines are filtered as `lexer.NewlineFilter` does."""
        parens: list[int] = []
        depth, length, at, size = 0, 0, 0, len(text)
        after_newline = True
        match = _TOKEN.match
        keywords = self.tables.keywords
        while at < size:
            found = match(text, at)
            if found is None:
                break
            group = found.lastindex or 0
            at = found.end()
            if group == _COMMENT:
                continue
            if group == _NEWLINE:
                if depth == 0 and not after_newline:
                    after_newline, length = True, 0
                    self._feed("_NL", Token(found[group], found.start(group), at))
                continue
            after_newline = False
            length += 1
            value = found[group]
            if group == _WORD:
                if value == "r" and text.startswith('"', at):
                    end = text.find('"', at + 1) + 1
                    if not end or "\n" in text[at:end]:
                        raise _GiveUpError
                    value, at = text[at - 1 : end], end
                    self._feed("RAW", Token(value, end - len(value), end))
                    continue
                kind = "NAME"
                if value in keywords and value.upper() in self.tables.states[self.states[-1]]:
                    kind = value.upper()
            elif group == _MARK:
                kind = _MARKS[value]
                depth = _nest(value, parens, depth)
            else:
                kind = _OPERATORS[value] if group == _OPERATOR else _TYPES[group]
            if length > LONG_STATEMENT:
                raise _GiveUpError
            self._feed(kind, Token(value, at - len(value), at))
        if text[at:].strip(" \t"):
            raise _GiveUpError

    def _feed(self, kind: str, token: Token | None) -> None:
        """Apply the reductions that the terminal calls for, then shift it."""
        states, values = self.states, self.values
        table, gotos, rules = self.tables.states, self.tables.gotos, self.tables.rules
        lone = self.lone
        while True:
            top = states[-1]
            action = table[top].get(kind)
            if action is None:
                raise _GiveUpError
            if action < 0 and lone[~action] and token is not None:
                key = (states[-2], top, kind)
                end = self.chains.get(key)
                if end is None:
                    end = self.chains[key] = self._follow(*key)
                states[-1] = end
                action = table[end][kind]
            if action >= 0:
                if token is None:
                    raise _GiveUpError
                states.append(action)
                values.append(token)
                return
            rule = rules[~action]
            size = rule.size
            children: list[Any] = []
            if size:
                children = values[-size:]
                del states[-size:]
                del values[-size:]
            if rule.parts is not None:
                children = _arranged(rule, children)
            callback = self.callbacks[~action]
            if rule.is_single and len(children) == 1:
                value = children[0]
            else:
                value = children if callback is None else callback(children)
            states.append(gotos[states[-1]][rule.origin])
            values.append(value)
            if token is None and states[-1] == self.end:
                return

    def _follow(self, below: int, top: int, kind: str) -> int:
        """Return the state after the unit reductions, which leave the value on top as it is: an
        expression passes through each precedence level above its own."""
        table, gotos, rules = self.tables.states, self.tables.gotos, self.tables.rules
        while True:
            action = table[top].get(kind)
            if action is None:
                raise _GiveUpError
            if action >= 0 or not self.lone[~action]:
                return top
            top = gotos[below][rules[~action].origin]


def _arranged(rule: tables.Rule, children: list[Any]) -> list[Any]:
    """Return the children of a node: inlined rules spliced in, None for absent optional parts."""
    found: list[Any] = []
    for index, spliced, before in rule.parts or ():
        if before:
            found += [None] * before
        if spliced:
            found += children[index]
        else:
            found.append(children[index])
    return found + [None] * rule.absent if rule.absent else found
