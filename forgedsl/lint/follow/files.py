"""Python files of a program: functions, classes, constants and imports, also of modules beside.

A file that the program names imports modules from its own folder. These modules import from that
same folder, as in a run (`lower.modules`): not from the folder of the .forge file, and not from the
folder they are in.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

from forgedsl.hir.pyimport import parsed
from forgedsl.shipped import PACKAGES
from forgedsl.types.effects import imports_of, nodes_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class File:
    """A Python file: its functions, classes, constants and imports. `near` reads a module of the
    same tree. `package` is the path of its folder, relative to the folder where imports begin."""

    def __init__(
        self,
        path: str,
        text: str,
        near: Callable[[str], File | None],
        package: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.text = text
        self.near = near
        self.module = parsed(text)
        body = flat(self.module.body)
        self.functions = {n.name: n for n in body if isinstance(n, Function)}
        self.classes = {n.name: n for n in body if isinstance(n, ast.ClassDef)}
        self.imports = imports_of(*(n for n in body if not isinstance(n, (*DEFINED,))))
        self.imports |= dict(_relative(body, package))
        self._package = package
        self.assigned: dict[str, ast.expr] = {}
        for node in body:
            value = getattr(node, "value", None)
            targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
            for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else ():
                if isinstance(target, ast.Name) and value is not None:
                    self.assigned[target.id] = value

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The modules that it imports anywhere, by their full names."""
        return tuple(dict.fromkeys(_modules(self.module, self._package)))

    def has(self, name: str) -> bool:
        """True if a name is defined or imported at the top of the file."""
        tables = (self.functions, self.classes, self.imports, self.assigned)
        return any(name in table for table in tables)


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
        self.known: dict[tuple[str, Path], File | None] = {}

    def read(self, path: str, root: Path | None = None) -> File | None:
        """Return a file by its path in the folder; None if there is no such Python file. `root` is
        the folder where its imports begin: its own, if the program names it."""
        begin = Path(path).parent if root is None else root
        key = (path, begin)
        if key not in self.known:
            self.known[key] = None  # ends the recursion of files that import each other
            try:
                text = (self.folder / path).read_text("utf-8")
                package = Path(path).parent.relative_to(begin).parts
                self.known[key] = File(path, text, lambda name: self._module(begin, name), package)
            except (OSError, SyntaxError, ValueError):
                return None
        return self.known[key]

    def imported(self, path: str) -> set[str]:
        """Return the paths of a file, and of the files of the same tree that it imports."""
        found: set[str] = set()
        pending = [self.read(path)]
        while pending:
            file = pending.pop()
            if file is None or file.path in found:
                continue
            found.add(file.path)
            pending += map(file.near, file.modules)
        return found

    def _module(self, root: Path, name: str) -> File | None:
        top = name.partition(".")[0]
        if not name or top in sys.stdlib_module_names or top in PACKAGES:
            return None
        place = root.joinpath(*name.split("."))
        for path in (place / "__init__.py", place.parent / f"{place.name}.py"):
            if (self.folder / path).is_file():
                return self.read(str(path), root)
        return None


def _modules(module: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the modules that a file imports, with the packages around them; `from a import b` may
    mean the module a.b."""
    for node in nodes_of(module):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (base := _base(node, package)) is not None:
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _relative(body: Iterable[ast.stmt], package: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the local names of `from .module import name`, with the full names."""
    for node in body:
        base = _base(node, package) if isinstance(node, ast.ImportFrom) and node.level else None
        for alias in node.names if isinstance(node, ast.ImportFrom) and base is not None else ():
            yield alias.asname or alias.name, f"{base}.{alias.name}"


def _base(node: ast.ImportFrom, package: tuple[str, ...]) -> str | None:
    """Return the full name of the module of `from ... import`; None if it lies outside."""
    if node.level > len(package):
        return None
    outer = package[: len(package) + 1 - node.level] if node.level else ()
    return ".".join((*outer, *([node.module] if node.module else ())))
