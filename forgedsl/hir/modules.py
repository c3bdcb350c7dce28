"""Finds and reads imported modules (`import "x" as m`), each file once.

`std/...` is read from the package, other paths relative to the importing file. `hir.imports`
resolves modules, and `hir.instantiate` those that hold functions only. A function of the standard
library is read from the user's cache when it is first looked up: most files use few of them.
"""

from __future__ import annotations

import os
import zlib
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.hir.context import Context
from forgedsl.hir.functions import Checked, build_function
from forgedsl.ir.program import Function, Scope
from forgedsl.mistakes.suggest import as_written, did_you_mean, nearest
from forgedsl.records import dataclass, field, replace
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, cache, decode, parse, read_source
from forgedsl.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A parsed module: `name` as imported, the folder its own imports are relative to."""

    name: str
    file: ast.File
    folder: Path | None
    is_standard: bool

    @property
    def key(self) -> str:
        """Key of the file: the same for all spellings of its path."""
        return str(Path(self.file.span.file).resolve())


class Functions(UserDict[str, Any]):
    """The functions of a standard module by name. A function is a pickled tree until it is looked
    up; then `build` makes it from its name and this tree."""

    def __init__(self, trees: dict[str, bytes], build: Callable[[str, bytes], Function]) -> None:
        self.data = dict[str, Any](trees)
        self.build = build

    def __getitem__(self, name: str) -> Function:
        found = self.data[name]
        if isinstance(found, bytes):
            found = self.data[name] = self.build(name, found)
        made: Function = found
        return made


@dataclass(slots=True)
class Loader:
    """Reads each module once. `sources` collects all texts, for renderers of diagnostics. `checked`
    has the results of `check_function`, `libraries` the scopes of standard modules."""

    reporter: Reporter
    sources: dict[str, SourceFile] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    checked: Checked = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """unsaved texts of an editor, by real path"""
    libraries: dict[str, Scope | None] = field(default_factory=dict)
    extended: set[Path] = field(default_factory=set)
    """folders whose extensions are installed"""

    def load(self, decl: ast.ImportForge, folder: Path | None, ctx: Context) -> Module | None:
        """Read the module that an import names; None after a diagnostic."""
        if decl.target == "std" or decl.target.startswith("std/"):
            return self._standard(decl, ctx)
        if folder is None:
            message = f"cannot import `{decl.target}`: this .forge text has no file and no folder"
            ctx.error("F115", message, decl.target_span)
            return None
        path = folder / decl.target
        if path.suffix != ".forge":
            path = path.with_name(path.name + ".forge")
        key = str(path.resolve())
        found = self.modules.get(key)
        if found is None:  # a module with mistakes reports them under each profile
            found = self._read(decl, path, ctx)
        if found is not None:
            self.modules[key] = found
        return found

    def _read(self, decl: ast.ImportForge, path: Path, ctx: Context) -> Module | None:
        held = self.texts.get(str(path.resolve()))
        if held is None and not path.is_file():
            message = f"there is no module `{decl.target}`"
            beside = sorted(found.stem for found in path.parent.glob("*.forge"))
            help_text = (
                did_you_mean(as_written(decl.target, nearest(path.stem, beside)))
                or f"looked for {path}"
            )
            if decl.target.endswith(".py"):
                shown = f'import python "{decl.target}" as {decl.alias or path.stem}'
                help_text = f"to import Python, write `{shown}`"
            ctx.error("F115", message, decl.target_span, help=help_text)
            return None
        if held is None:
            source = read_source(path, str(path), self.reporter)
        else:
            source = decode(held.encode("utf-8", "surrogatepass"), str(path), self.reporter)
        if source is None:
            return None
        self.sources[source.name] = source
        problems = Reporter()
        tree = parse(source, problems)
        for problem in problems:
            self.reporter.report(problem)
        if problems.has_errors:
            return None
        return Module(name=decl.target, file=tree, folder=path.parent, is_standard=False)

    def _standard(self, decl: ast.ImportForge, ctx: Context) -> Module | None:
        known = standard_modules()
        if decl.target not in known:
            what = "there is no standard module"
            ctx.unknown("F115", what, decl.target, decl.target_span, known)
            return None
        if decl.target not in self.modules:
            self.modules[decl.target] = self.standard(decl.target)
        return self.modules[decl.target]

    def standard(self, name: str) -> Module:
        """Read a module of the standard library."""
        trees = self._pickled(name)
        whole, *decls = map(cache.unpickled, trees.values()) if trees is not None else (None,)
        if isinstance(whole, ast.File) and all(isinstance(decl, ast.FnDecl) for decl in decls):
            file = replace(whole, decls=tuple(decls))
        else:
            file = parse(self._standard_source(name), self.reporter)
        return Module(name=name, file=file, folder=None, is_standard=True)

    def library(self, name: str) -> Scope | None:
        """Return the functions of a standard module; None if the cache does not have them, as for
        a module with parameters or imports."""
        if name not in self.libraries:
            trees = self._pickled(name)
            self.libraries[name] = None if trees is None else self._scope(name, trees)
        return self.libraries[name]

    def _scope(self, name: str, trees: dict[str, bytes]) -> Scope:
        ctx = Context(self.reporter)
        scope = Scope(module=name)

        def build(function: str, tree: bytes) -> Function:
            decl = cache.unpickled(tree)
            if not isinstance(decl, ast.FnDecl):  # cached by a version whose trees differ
                decls = parse(self._standard_source(name), self.reporter).decls
                decl = next(d for d in decls if getattr(d, "name", "") == function)
            return build_function(decl, scope, ctx)

        scope.names = Functions({name: tree for name, tree in trees.items() if name}, build)
        return scope

    def _pickled(self, name: str) -> dict[str, bytes] | None:
        """Return the pickled trees of a module's functions by name."""
        source = self._standard_source(name)
        return pickled_trees(source.name, source.text)

    def _standard_source(self, name: str) -> SourceFile:
        shown = f"forgedsl:{name}.forge"
        return self.sources.setdefault(shown, SourceFile(shown, _standard_text(name)))


@lru_cache
def _standard_text(name: str) -> str:
    return standard_path(name).read_text("utf-8")


@lru_cache
def pickled_trees(name: str, text: str) -> dict[str, bytes] | None:
    """Return the pickled trees of the functions of a standard module, by name. The entry "" is the
    rest of the file. They are cached in this process and in a file, by the text of the module."""
    digest = zlib.crc32(f"{VERSION}\n{name}\n{text}".encode())
    entry = f"library-{digest:08x}{len(text):x}.marshal"
    trees: dict[str, bytes] | None = cache.load_plain(entry)
    if trees is None:
        import pickle

        problems = Reporter()
        file = parse(SourceFile(name, text), problems)
        trees = {"": pickle.dumps(replace(file, decls=()))}
        trees |= {d.name: pickle.dumps(d) for d in file.decls if isinstance(d, ast.FnDecl)}
        if problems.has_errors or len(trees) <= len(file.decls):
            return None
        cache.save_plain(entry, trees)
    return trees


def _std_folder() -> Path:
    import forgedsl.pipelines

    return Path(forgedsl.pipelines.__path__[0], "std")


def standard_path(name: str) -> Path:
    """Return the path of a module of the standard library ("std/rl", "forgedsl:std/rl.forge")."""
    stem = name.removeprefix("forgedsl:").removeprefix("std/").removesuffix(".forge")
    return _std_folder() / f"{stem}.forge"


@lru_cache(maxsize=1)
def standard_modules() -> tuple[str, ...]:
    """Return the names of the standard modules ("std/rl")."""
    files = os.listdir(_std_folder())
    return tuple(sorted(f"std/{file[:-6]}" for file in files if file.endswith(".forge")))
