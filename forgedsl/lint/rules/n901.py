"""N901 undocumented: a parameter without a `##` comment.

    param beta : float = 0.02                    # fires
    ## Weight of the KL to the reference.
    param beta : float = 0.02                    # silent, below such a comment

`forgec doc`, completion and hover texts show the comment; without it, users of the file must read
the source. Describe the parameter. Pedantic: on with `--select N901`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast

finding = rule(__doc__, "I", pedantic=True)


def check(view: View) -> Findings:
    for decl in view.file.decls:
        if isinstance(decl, ast.Param) and not decl.doc:
            yield finding(
                f"parameter `{decl.name}` has no `##` comment",
                decl.name_span,
                help="say what it is on a line above: `## ...`",
            )
