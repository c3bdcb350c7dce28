"""Finds and reads imported modules (`import "x" as m`), each file once.

`std/...` is read from the package, other paths relative to the importing file. `hir.imports`
resolves modules, and `hir.instantiate` those that hold functions only.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from forgedsl.diagnostics import Reporter
from forgedsl.hir.context import Context
from forgedsl.hir.functions import Checked
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.records import dataclass, field
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


@dataclass(slots=True)
class Loader:
    """Reads each module once. `sources` collects all texts, for renderers of diagnostics. `checked`
    has the results of `check_function`."""

    reporter: Reporter
    sources: dict[str, SourceFile] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    checked: Checked = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """unsaved texts of an editor, by real path"""

    def load(self, decl: ast.ImportForge, folder: Path | None, ctx: Context) -> Module | None:
        """Read the module that an import names; None after a diagnostic."""
        if decl.target == "std" or decl.target.startswith("std/"):
            return self._standard(decl, ctx)
        if folder is None:
            message = f"cannot import `{decl.target}`: this text is not a file, so it has no folder"
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
            help_text = did_you_mean(nearest(path.stem, beside)) or f"looked for {path}"
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
        """Read a module of the standard library. Its tree is cached by content."""
        text = _std_folder().joinpath(f"{name.removeprefix('std/')}.forge").read_text("utf-8")
        shown = f"forgedsl:{name}.forge"
        source = SourceFile(shown, text)
        self.sources[shown] = source
        digest = zlib.crc32(f"{VERSION}\n{shown}\n{text}".encode())
        entry = f"module-{digest:08x}{len(text):x}.pickle"
        tree = cache.load(entry)
        if not isinstance(tree, ast.File):
            problems = Reporter()
            tree = parse(source, problems)
            for problem in problems:
                self.reporter.report(problem)
            if not problems.has_errors:
                cache.save(entry, tree)
        return Module(name=name, file=tree, folder=None, is_standard=True)


def _std_folder() -> Path:
    import forgedsl.pipelines

    return Path(forgedsl.pipelines.__path__[0], "std")


def standard_path(name: str) -> Path:
    """Return the path of a module of the standard library ("std/rl", "forgedsl:std/rl.forge")."""
    stem = name.removeprefix("forgedsl:").removeprefix("std/").removesuffix(".forge")
    return _std_folder() / f"{stem}.forge"


def standard_modules() -> tuple[str, ...]:
    """Return the names of the standard modules ("std/rl")."""
    return tuple(sorted(f"std/{path.stem}" for path in _std_folder().glob("*.forge")))
