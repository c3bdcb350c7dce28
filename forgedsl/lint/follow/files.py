"""Python files of a program: functions, classes, constants and imports, also of modules beside."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

from forgedsl.types.effects import imports_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class File:
    """A Python file: its functions, classes, constants and imports. `near` reads a module of the
    same tree."""

    def __init__(self, path: str, text: str, near: Callable[[str], File | None]) -> None:
        self.path = path
        self.text = text
        self.near = near
        self.module = ast.parse(text)
        body = flat(self.module.body)
        self.functions = {n.name: n for n in body if isinstance(n, Function)}
        self.classes = {n.name: n for n in body if isinstance(n, ast.ClassDef)}
        self.imports = imports_of(*(n for n in body if not isinstance(n, (*DEFINED,))))
        self.assigned: dict[str, ast.expr] = {}
        for node in body:
            value = getattr(node, "value", None)
            targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
            for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else ():
                if isinstance(target, ast.Name) and value is not None:
                    self.assigned[target.id] = value


def flat(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Return statements, with those inside of `if` and `try`."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            handlers = [s for h in getattr(node, "handlers", ()) for s in h.body]
            found += flat([*node.body, *handlers, *node.orelse])
        else:
            found.append(node)
    return found


class Files:
    """Reads the Python files of a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, File | None] = {}

    def read(self, path: str) -> File | None:
        """Return a file by its path in the folder; None if there is no such Python file."""
        if path not in self.known:
            self.known[path] = None  # files that import each other
            try:
                text = (self.folder / path).read_text("utf-8")
                parent = Path(path).parent
                self.known[path] = File(path, text, lambda name: self._module(parent, name))
            except (OSError, SyntaxError, ValueError):
                return None
        return self.known[path]

    def imported(self, path: str) -> set[str]:
        """Return the paths of a file, and of the files of the same tree that it imports."""
        found: set[str] = set()
        pending = [self.read(path)]
        while pending:
            file = pending.pop()
            if file is None or file.path in found:
                continue
            found.add(file.path)
            for full in file.imports.values():
                pending += [file.near(full), file.near(full.rpartition(".")[0])]
        return found

    def _module(self, parent: Path, name: str) -> File | None:
        if not name:
            return None
        inner = Path(*name.split("."))
        for place in (parent / inner, inner):
            for path in (place.parent / f"{place.name}.py", place / "__init__.py"):
                if (self.folder / path).is_file():
                    return self.read(str(path))
        return None
