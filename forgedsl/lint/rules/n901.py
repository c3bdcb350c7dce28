"""N901 undocumented: a parameter without a `##` comment.

    param beta : float = 0.02                    # fires
    ## Weight of the KL to the reference.
    param beta : float = 0.02

`forgec doc` and completion show it. Pedantic: on with `--select N901`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint.finding import rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast

finding = rule(__doc__, "I", pedantic=True)


def check(view: View) -> Iterator[Diagnostic]:
    for decl in view.file.decls:
        if isinstance(decl, ast.Param) and not decl.doc:
            yield finding(
                f"parameter `{decl.name}` has no `##` comment",
                decl.name_span,
                help="say what it is on a line above: `## ...`",
            )
