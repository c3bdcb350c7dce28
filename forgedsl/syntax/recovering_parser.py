"""Text -> AST with Lark, and with recovery from syntax errors.

At an error, a diagnostic is made (syntax_help.py), and parsing continues: the statement is
completed (mending.py), or dropped, with the parser's stack cut back to the innermost block. So one
pass finds several mistakes, and one mistake causes no second message. If braces do not balance, the
file is parsed again with the missing `}` inserted, or a wrong bracket replaced, as recovery.py
finds them, and with comments that begin with `//` blanked out.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from typing import Any

import lark
from lark.exceptions import UnexpectedInput
from lark.parsers.lalr_interactive_parser import InteractiveParser

from forgedsl.diagnostics import Diagnostic, Reporter, Severity
from forgedsl.mistakes import syntax_help
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast, cache, mending, recovery
from forgedsl.syntax.build import Builder
from forgedsl.syntax.fast_parser import MAX_NESTING
from forgedsl.syntax.lexer import NestingError, NewlineFilter
from forgedsl.syntax.tables import OPTIONS, grammar_text

MAX_ERRORS = 20
MAX_DEPTH = 150


class _Parser:
    """A Lark instance with its builder and newline filter."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.newlines = NewlineFilter()
        grammar = grammar_text()
        key = f"{lark.__version__} {sys.version_info[:2]} {sorted(OPTIONS.items())}\n{grammar}"
        name = f"grammar-{hashlib.sha256(key.encode()).hexdigest()[:20]}.pickle"
        callbacks: dict[str, Any] = {"transformer": self.builder, "postlex": self.newlines}
        compiled = cache.load(name)
        if compiled is None:
            self.lark = lark.Lark(grammar, **OPTIONS, **callbacks)
            data, memo = self.lark.memo_serialize([lark.lexer.TerminalDef, lark.grammar.Rule])
            cache.save(name, {"data": data, "memo": memo})
        else:
            load: Any = lark.Lark._load_from_dict
            self.lark = load(compiled["data"], compiled["memo"], **callbacks)


@functools.cache
def _parser() -> _Parser:
    return _Parser()


def tokens(source: SourceFile) -> tuple[lark.Token, ...]:
    """Yield the tokens of a correct file, as the parser reads them."""
    parser = _parser()
    parser.newlines.reset()
    parser.builder.file = source.name
    return tuple(parser.lark.parse_interactive(source.text, start="start").iter_parse())


def parse(source: SourceFile, reporter: Reporter) -> ast.File:
    """Parse a whole file. After syntax errors the result holds what could be read."""
    first = _Run(source, Reporter(), ())
    file = first.file()
    if file is not None:
        return file
    if comments := recovery.slash_comments(source):
        others = Reporter()
        blank = recovery.without_comments(source.text, comments)
        file = parse(SourceFile(source.name, blank), others)
        for diagnostic in [*comments, *others][:MAX_ERRORS]:
            reporter.report(diagnostic)
        return file
    read = first.read()
    wrong = recovery.wrong_brackets(read)
    unclosed = recovery.unclosed_blocks(read) if not wrong else []
    if not wrong and not unclosed:
        for diagnostic in first.reporter:
            reporter.report(diagnostic)
        return first.partial
    found = [bracket.diagnostic(source) for bracket in wrong]
    found += [block.diagnostic(source) for block in unclosed]
    characters = list(source.text)
    for bracket in wrong:
        characters[bracket.at] = "}"
    mended = SourceFile(source.name, "".join(characters))
    second = Reporter()
    run = _Run(mended, second, tuple(block.close_before for block in unclosed))
    run.num_errors = min(len(found), MAX_ERRORS - 1)
    file = run.file()
    broken = {source.position(d.span.start)[0] for d in second}
    # an incomplete line may lack its `}` too
    found = [d for d in found if d.code != "S003" or source.position(d.span.start)[0] not in broken]
    for diagnostic in [*found, *second][:MAX_ERRORS]:
        reporter.report(diagnostic)
    return file or run.partial


def parse_value(source: SourceFile, reporter: Reporter) -> ast.Expr | None:
    """Parse one expression, the right side of an override."""
    value: ast.Expr | None = _Run(source, reporter, ()).value()
    return value


class _Run:
    """One run of the parser over one text. Reports at most MAX_ERRORS mistakes."""

    def __init__(self, source: SourceFile, reporter: Reporter, closers: tuple[int, ...]) -> None:
        self.source = source
        self.reporter = reporter
        self.parser = _parser()
        self.parser.builder.file = source.name
        self.parser.builder.on_error = self._literal_error
        self.parser.newlines.reset(closers)
        self.num_errors = 0
        self.resumed_at = -1
        self.lost_header = False
        self.skipped: list[tuple[int, int]] = []
        self.mended_at = (-1, 0)
        self.closed = False
        self.partial = ast.File(edition=None, decls=(), span=Span(source.name, 0, 0))

    def file(self) -> ast.File | None:
        """The tree, or None if there was a mistake (then `partial` holds what could be read)."""
        result = self._parse("start", self._recover)
        if isinstance(result, ast.File):
            self.partial = result
            return result if self.num_errors == 0 else None
        return None

    def read(self) -> SourceFile:
        """Return the text with blanks in place of the braces that recovery skipped."""
        text = self.source.text
        for start, end in self.skipped:
            text = text[:start] + re.sub(r"[{}]", " ", text[start:end]) + text[end:]
        return SourceFile(self.source.name, text)

    def value(self) -> Any:
        result = self._parse("value", None)
        return result if self.num_errors == 0 else None

    def _parse(self, start: str, on_error: Any) -> Any:
        try:
            tree: Any = self.parser.lark.parse(self.source.text, start=start, on_error=on_error)
        except NestingError as error:
            span = Span(self.source.name, error.token.start_pos or 0, error.token.end_pos or 0)
            self._report_depth(span, f"brackets nest deeper than {MAX_NESTING} levels")
            return None
        except UnexpectedInput as error:
            if on_error is None:
                self._report(syntax_help.explain(error, self.source))
            return None
        if self.parser.newlines.has_long_statement:
            deep = recovery.too_deep(tree, MAX_DEPTH)
            if deep is not None:
                self._report_depth(deep, f"this expression nests deeper than {MAX_DEPTH} levels")
                return None
        return tree

    def _recover(self, error: UnexpectedInput) -> bool:
        """Report an error, repair the stack and move the lexer forward. False stops the parse."""
        token = getattr(error, "token", None)
        at_end = token is not None and token.type == "$END"
        found = syntax_help.explain(error, self.source)
        closes_lost = (
            self.lost_header and found.code == "S017" and found.message.startswith("no `{`")
        )
        # no second message for an end of file inside a reported mistake, or the `}` of a reported
        # header
        if not ((at_end and self.num_errors) or closes_lost):
            self._report(found)
        interactive: InteractiveParser = error.interactive_parser
        state = interactive.parser_state
        if self.num_errors >= MAX_ERRORS or (at_end and not self._close(state)):
            recovery.cut_back(state, to_top=True)
            whole = Span(self.source.name, 0, len(self.source.text))
            self.partial = ast.File(edition=None, decls=mending.finished(state), span=whole)
            return False
        if at_end:
            return True
        lexer = interactive.lexer_thread.state
        start = error.pos_in_stream if token is None else token.start_pos
        start = max(start if start is not None else 0, self.resumed_at)
        mended = None
        if (start, len(self.skipped)) != self.mended_at:
            mended = mending.mend(state, self.source.text, token.type if token else "", start)
        if mended is not None:
            self.lost_header = False
            self.skipped.append(mended.skipped)
            self.mended_at = start, len(self.skipped)
            self.parser.newlines.resume(*mending.open_brackets(state))
            self.resumed_at = lexer.line_ctr.char_pos = mended.resume
            return True
        in_block = recovery.cut_back(state)
        self.lost_header = not in_block and not closes_lost
        position = recovery.end_of_statement(self.source.text, start, in_block=in_block)
        if position == self.resumed_at or (token is None and position == start):
            position += 1
        if in_block and recovery.begins_declaration(self.source.text, position):
            recovery.cut_back(state, to_top=True)  # the mistake hid the end of its block
        self.resumed_at = lexer.line_ctr.char_pos = position
        return True

    def _close(self, state: Any) -> bool:
        """Close the open blocks at the end of the text; False if that was tried before."""
        if self.closed:
            return False
        self.closed = True
        self.resumed_at = end = len(self.source.text)
        if mending.mend(state, self.source.text, "_NL", end) is None:
            recovery.cut_back(state)
        mending.close_all(state, end)
        return True

    def _literal_error(self, code: str, name: str, message: str, span: Span, help: str) -> None:
        self._report(
            Diagnostic(
                code=code, name=name, severity=Severity.ERROR, message=message, span=span, help=help
            )
        )

    def _report_depth(self, span: Span, message: str) -> None:
        help_text = "move parts of it into statements of their own"
        self._literal_error("S011", "nesting", message, span, help_text)

    def _report(self, diagnostic: Diagnostic) -> None:
        self.num_errors += 1
        # an open bracket is one mistake, though every line after it fails
        place = (diagnostic.code, diagnostic.span)
        if diagnostic.code != "S008" or place not in [(d.code, d.span) for d in self.reporter]:
            self.reporter.report(diagnostic)
