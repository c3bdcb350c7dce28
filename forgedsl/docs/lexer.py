"""Colours .forge text in Pygments, by the patterns of grammar/forge.tmLanguage.json.

The entry point in pyproject.toml makes it known under the name `forge`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pygments.lexer import RegexLexer
from pygments.token import (
    Comment,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    String,
    Text,
    Whitespace,
    _TokenType,
)  # fmt: skip

from forgedsl.docs import textmate

SCOPES = {
    "comment.line.suppression": Comment.Special,
    "comment.block.documentation": String.Doc,
    "comment": Comment.Single,
    "constant.character.escape": String.Escape,
    "constant.numeric": Number,
    "constant.language": Keyword.Constant,
    "string": String,
    "keyword.other.unit": Keyword.Type,
    "keyword.control.import": Keyword.Namespace,
    "keyword.control": Keyword,
    "keyword.operator.word": Operator.Word,
    "keyword.operator": Operator,
    "storage.type": Keyword.Declaration,
    "storage.modifier": Keyword.Type,
    "support.constant": Keyword.Constant,
    "support.function": Name.Builtin,
    "support.type": Keyword.Type,
    "entity.name.function": Name.Function,
    "variable.parameter": Name.Variable,
    "variable.other.metric": Name.Variable,
    "variable.other": Name,
    "punctuation": Punctuation,
}
"""beginnings of scopes, the first that fits counts"""
Found = Iterator[tuple[int, _TokenType, str]]


def token_of(scope: str) -> _TokenType:
    """Return the token type of a scope of the TextMate grammar."""
    return next(token for prefix, token in SCOPES.items() if scope.startswith(prefix))


def _groups(whole: _TokenType, parts: dict[int, _TokenType]) -> Callable[..., Found]:
    """Make a callback for a match whose groups have types of their own."""

    def found(_: RegexLexer, match: re.Match[str], __: Any = None) -> Found:
        place = match.start()
        for number, token in parts.items():
            start, end = match.span(number)
            if start < 0:
                continue
            if place < start:
                yield place, whole, match.string[place:start]
            yield start, token, match.string[start:end]
            place = end
        if place < match.end():
            yield place, whole, match.string[place : match.end()]

    return found


def states() -> dict[str, list[Any]]:
    """Return the states of the lexer: `root`, and one for each kind of string with an end."""
    grammar = textmate.patterns()
    found: dict[str, list[Any]] = {"root": [(r"\s*\n", Whitespace)]}
    for number, pattern in enumerate(grammar):
        if "begin" in pattern:
            token, inner = token_of(pattern["name"]), f"string{number}"
            found["root"].append((pattern["begin"], token, inner))
            found[inner] = [(pattern["end"], token, "#pop")]
            found[inner] += [(p["match"], token_of(p["name"])) for p in pattern["patterns"]]
            found[inner] += [(r"[^\"\\\n]+", token), (r".|\n", token)]
            continue
        whole = token_of(pattern["name"]) if "name" in pattern else Text
        captures = {int(n): token_of(c["name"]) for n, c in pattern.get("captures", {}).items()}
        found["root"].append((pattern["match"], _groups(whole, captures) if captures else whole))
    found["root"].append((r"[ \t]+", Whitespace))
    return found


class ForgeLexer(RegexLexer):  # type: ignore[misc]  # Pygments has no types
    """The lexer of .forge files."""

    name = "ForgeDSL"
    aliases: ClassVar[list[str]] = ["forge"]
    filenames: ClassVar[list[str]] = ["*.forge"]
    flags = re.MULTILINE
    tokens: ClassVar[dict[str, list[Any]]] = states()
