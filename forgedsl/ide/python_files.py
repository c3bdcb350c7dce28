"""The Python file that an import misses: its path, and a text with the rewards that the file uses.

import python "rewards/grading.py" as grading        rewards/grading.py:
reward short = grading.short { procs = 2 }   -->       def short(prompt, response, target): ...
"""

from __future__ import annotations

from pathlib import Path

from forgedsl.diagnostics import Diagnostic
from forgedsl.ide.workspace import Document
from forgedsl.syntax import ast

HEAD = '"""Scores answers: each function is called as (prompt, response, target) -> float."""\n'
FUNCTION = '''

def {name}({parameters}) -> float:
    """1.0 if the response is the target. Compute your own score here."""
    return float(response.strip() == str(target).strip())
'''


def missing_file(document: Document, finding: Diagnostic) -> tuple[Path, str] | None:
    """The path and text of a new file for the finding F115, "cannot read"; None if it is about
    something else, or the file is needed for something else than rewards."""
    imports = (each for each in document.tree.decls if isinstance(each, ast.ImportPython))
    found = next((each for each in imports if each.target_span == finding.span), None)
    if finding.code != "F115" or found is None or found.alias is None:
        return None
    path = document.folder / found.target
    if path.suffix != ".py" or Path(found.target).is_absolute() or path.exists():
        return None
    functions = _rewards(document, found.alias)
    if not functions:
        return None
    body = "".join(
        FUNCTION.format(name=name, parameters=", ".join(("prompt: str, response: str", *more)))
        for name, more in functions.items()
    )
    return path, HEAD + body


def _rewards(document: Document, alias: str) -> dict[str, tuple[str, ...]]:
    """Rewards that the text takes from the file, by name: their parameters after the response."""
    found: dict[str, tuple[str, ...]] = {}
    for decl in document.tree.decls:
        if not isinstance(decl, ast.BindDecl) or decl.kind != "reward":
            continue
        value = decl.value
        path = value.function if isinstance(value, ast.Call) else value
        if isinstance(path, ast.Path) and len(path.parts) == 2 and path.parts[0] == alias:
            args = value.args if isinstance(value, ast.Call) else ()
            given = (each.name for each in args if each.name is not None)
            found[path.parts[1]] = ("target: str", *given)
    return found
