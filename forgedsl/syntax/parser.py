"""Text -> AST.

    source --fast_parser.py--> AST                      a file without syntax errors
           --recovering_parser.py--> AST and diagnostics    any other, read again with Lark

`##` comments directly above a declaration become its `doc`.
"""

from __future__ import annotations

from forgedsl.diagnostics import Reporter
from forgedsl.records import replace
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, fast_parser, trivia

_DOCUMENTED = ast.Param | ast.FnDecl | ast.BindDecl | ast.BlockDecl


def parse(source: SourceFile, reporter: Reporter) -> ast.File:
    """Parse a whole file. After syntax errors the tree holds the parts that could be parsed."""
    file: ast.File | None = fast_parser.parse(source.text, source.name, "start")
    if file is None:
        from forgedsl.syntax import recovering_parser

        file = recovering_parser.parse(source, reporter)
    return _with_docs(file, source)


def parse_value(source: SourceFile, reporter: Reporter) -> ast.Expr | None:
    """Parse one expression, the right side of an override."""
    value: ast.Expr | None = fast_parser.parse(source.text, source.name, "value")
    if value is None:
        from forgedsl.syntax import recovering_parser

        value = recovering_parser.parse_value(source, reporter)
    return value


def _with_docs(file: ast.File, source: SourceFile) -> ast.File:
    """Attach the `##` comments that stand directly above a declaration."""
    docs = trivia.doc_by_line(source)
    if not docs:
        return file
    decls: list[ast.Decl] = []
    for decl in file.decls:
        doc = docs.get(source.position(decl.span.start)[0])
        if doc is not None and isinstance(decl, _DOCUMENTED):
            decls.append(replace(decl, doc=doc))
        else:
            decls.append(decl)
    return replace(file, decls=tuple(decls))
