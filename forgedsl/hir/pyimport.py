"""`import python "x.py" as x`: its functions, read from the source text, never executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forgedsl.hir.context import Context
from forgedsl.hir.ir import PythonFunction, Scope
from forgedsl.syntax import ast


def python_scope(
    decl: ast.ImportPython, folder: Path | None, ctx: Context, rebase: Callable[[str], str]
) -> Scope | None:
    """The module-level functions of the file, as a scope; `rebase` makes its path relative to the
    program."""
    import ast as python

    path = Path(decl.target)
    if path.is_absolute():
        message = "a Python file is named relative to the .forge file"
        ctx.error("F115", message, decl.target_span)
        return None
    if folder is None:
        message = f"cannot import `{decl.target}`: this text has no folder"
        ctx.error("F115", message, decl.target_span)
        return None
    try:
        text = (folder / path).read_text("utf-8")
        tree = python.parse(text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        ctx.error("F115", f"cannot read `{decl.target}`: {reason}", decl.target_span)
        return None
    except UnicodeDecodeError:
        ctx.error("F115", f"`{decl.target}` is not UTF-8", decl.target_span)
        return None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        ctx.error("F115", f"`{decl.target}` is not valid Python{where}", decl.target_span)
        return None
    scope = Scope(module=decl.target)
    for node in tree.body:
        if isinstance(node, python.FunctionDef | python.AsyncFunctionDef):
            arguments = node.args
            params = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            scope.names[node.name] = PythonFunction(
                module=rebase(decl.target),
                name=node.name,
                params=tuple(param.arg for param in params),
                span=decl.span,
            )
    return scope
