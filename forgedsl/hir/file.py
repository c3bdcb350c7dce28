"""Interface of one file under one profile, for the steps of its resolution: tables and names.

`hir.resolver.Resolver` implements it and evaluates settings. The steps see only a `File`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path, PurePath
from typing import Any, Self

from forgedsl.diagnostics import Label
from forgedsl.hir.collect import Collector
from forgedsl.hir.context import Context
from forgedsl.hir.modules import Loader
from forgedsl.hir.params import Params
from forgedsl.hir.settings import Coercer
from forgedsl.hir.table import Declared, Entry
from forgedsl.ir.program import Scope, Value
from forgedsl.settings import Setting
from forgedsl.shipped import SHIPPED
from forgedsl.sizes.hosts import Host
from forgedsl.syntax import ast


class File(ABC):
    """One resolution of one file under one profile. `parent` is the file that imports it, as
    `alias`."""

    def __init__(
        self,
        file: ast.File,
        name: str,
        folder: Path | None,
        loader: Loader,
        host: Host,
        parent: Self | None = None,
        alias: str = "",
    ) -> None:
        self.ctx = Context(loader.reporter)
        self.parent = parent
        self.prefix: str = f"{parent.prefix}{alias}." if parent is not None else ""
        self.name = name
        self.stem: str = PurePath(name).stem
        self.folder = folder
        self.loader = loader
        self.host = host
        self.collector = Collector(self.ctx, self.prefix.removesuffix("."))
        self.table = self.collector.file(file)
        self.modules: dict[str, Self] = {}
        """the imported files that could be read, without modules of the standard library"""
        self.scope = Scope(module=self.prefix.removesuffix("."))
        self.params = Params(self.table.params, self.table.param_entries, self, self.home, self.ctx)
        self.coercer = Coercer(self.ctx, self, self.table.declared, self.rebase)
        self.used = self.coercer.used
        self.used_by: dict[str, set[str]] = {}
        """the names that each function of the file uses"""

    # ---- names

    def in_use(self) -> set[str]:
        """Return the names in use. Functions that are used only by each other do not count."""
        found = set(self.used)
        for name in self.used_by:
            found |= {used for used in self.used_by[name] if name not in self._within(used)}
        return found | {used for name in self._within(*self.used) for used in self.used_by[name]}

    def _within(self, *names: str) -> set[str]:
        """Return the functions among `names` and all that they call, directly or not."""
        seen: set[str] = set()
        pending = [*names]
        while pending:
            if (name := pending.pop()) in self.used_by and name not in seen:
                seen.add(name)
                pending += self.used_by[name]
        return seen

    def knows(self, name: str) -> bool:
        """True if anything of this name is declared."""
        table = self.table
        return any(
            name in t for t in (table.params, table.declared, table.functions, table.imports)
        )

    def constants(self) -> tuple[str, ...]:
        """Return the names of parameters and of declarations with settings."""
        return (*self.table.params, *self.table.declared)

    def origins(self, expr: ast.Expr) -> tuple[Label, ...]:
        """Return labels at the values of the parameters that an expression reads."""
        return self.params.origins(expr)

    def home(self, entry: Entry) -> Self:
        """Return the file whose names an entry is evaluated with: the one it is written in."""
        found = self
        while found.parent is not None and found.name != entry.expr.span.file:
            found = found.parent
        return found

    def declared_at(self, path: ast.Path) -> tuple[Declared | None, int]:
        """Return the declaration that a path starts with, and the number of parts that name it."""
        parts = path.parts
        for end in range(1, len(parts) + 1):
            found = self.table.declared.get(".".join(parts[:end]))
            if found is not None:
                return found, end
        return None, 0

    def model_of(self, declared: Declared) -> Declared | None:
        """Return the model that a service runs; None if it is remote, or unknown, which has been
        reported."""
        path = declared.ctor_args[0]
        if isinstance(path, ast.String):
            return None
        model = self.table.declared.get(path.text)
        return model if model is not None and model.kind.name == "model" else None

    def rebase(self, path: str) -> str:
        """Convert a path relative to this file's folder to one relative to the program's folder."""
        root: File = self
        while root.parent is not None:
            root = root.parent
        if self.folder is None or root.folder is None or self.folder == root.folder:
            return path
        if path.startswith(SHIPPED) or Path(path).is_absolute():
            return path
        return Path(os.path.relpath(self.folder / path, root.folder)).as_posix()

    # ---- values

    @abstractmethod
    def value_of(self, path: ast.Path) -> Any:
        """Return the value of a name in a constant expression."""

    @abstractmethod
    def setting(self, declared: Declared, name: str) -> Value:
        """Return the value of a setting. Each is evaluated once."""

    @abstractmethod
    def setting_of(self, declared: Declared, setting: Setting) -> Value:
        """Evaluate a setting from its entry or its default."""

    @abstractmethod
    def need(self, name: str, setting: str, why: str) -> None:
        """Report a missing setting that the use of its declaration in the flow requires."""
