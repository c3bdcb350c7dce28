"""Filter between Lark's lexer and its parser: decides which newlines end a statement.

Newlines inside `()` and `[]` and repeated newlines are dropped. While recovering from an unclosed
block the filter also inserts the missing `}` at given offsets, so that the rest of the file parses.

Nesting is limited here, on tokens, because later passes recurse over the tree.
"""

from __future__ import annotations

from collections.abc import Iterator

from lark import Token

from forgedsl.syntax.fast_parser import LONG_STATEMENT, MAX_NESTING

_OPENING = frozenset({"LPAR", "LSQB", "LBRACE"})
_CLOSING = frozenset({"RPAR", "RSQB", "RBRACE"})
_DECLARATION_WORDS = {"param": "PARAM", "import": "IMPORT", "require": "REQUIRE"}


class NestingError(Exception):
    """Brackets nest deeper than MAX_NESTING at `token`."""

    def __init__(self, token: Token) -> None:
        self.token = token
        super().__init__(f"nesting deeper than {MAX_NESTING}")


class NewlineFilter:
    """The `postlex` object of Lark. `closers` are offsets before which a `}` is missing."""

    always_accept = ("_NL",)

    def __init__(self) -> None:
        self.closers: list[int] = []
        self.has_long_statement = False
        self._resumed: tuple[list[int], int] | None = None

    def reset(self, closers: tuple[int, ...] = ()) -> None:
        """Forget the previous file."""
        self.closers = sorted(closers)
        self.has_long_statement = False
        self._resumed = None

    def resume(self, parens: list[int], depth: int) -> None:
        """Continue in the middle of a statement with these brackets open: Lark starts a new token
        stream after each mistake."""
        self._resumed = parens, depth

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        # `parens`: for each open brace, the parentheses open outside of it; `depth`: those inside
        parens, depth = self._resumed or ([], 0)
        after_newline = self._resumed is None
        self._resumed = None
        length = 0
        for token in stream:
            kind = token.type
            if kind == "_NL":
                if depth == 0 and not after_newline:
                    after_newline = True
                    length = 0
                    yield token
                continue
            while (
                self.closers and token.start_pos is not None and self.closers[0] <= token.start_pos
            ):
                yield from self._close(self.closers.pop(0))
                parens, depth = parens[:-1], 0
                token = _as_declaration_word(token)
                kind = token.type
            after_newline = False
            length += 1
            self.has_long_statement = self.has_long_statement or length > LONG_STATEMENT
            if kind in _OPENING:
                if len(parens) + depth >= MAX_NESTING:
                    raise NestingError(token)
                if kind == "LBRACE":
                    parens.append(depth)
                    depth = 0
                else:
                    depth += 1
            elif kind in _CLOSING:
                if kind == "RBRACE":
                    depth = parens.pop() if parens else 0
                elif depth:
                    depth -= 1
            yield token
        while self.closers:
            yield from self._close(self.closers.pop(0))

    @staticmethod
    def _close(offset: int) -> Iterator[Token]:
        yield Token("RBRACE", "}", offset, end_pos=offset)
        yield Token("_NL", "\n", offset, end_pos=offset)


def _as_declaration_word(token: Token) -> Token:
    """Turn a name into a declaration keyword: `param` was lexed as a name inside of a block, which
    the inserted `}` has closed."""
    kind = _DECLARATION_WORDS.get(token.value)
    return token.update(type=kind) if kind else token
