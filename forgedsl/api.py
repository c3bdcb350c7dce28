"""The compiler as functions: text or path in, `Program` and diagnostics out. No torch here.

- `load(path)` and `load_text(text)` resolve a whole program under one profile;
- `load_functions(source)` resolves a file of functions (losses, advantages), given as text, as a
  path, or as the name of a standard module or function ("std/rl", "grpo").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from forgedsl import surface
from forgedsl.diagnostics import Reporter
from forgedsl.errors import SourceError, expect
from forgedsl.hir.context import Context
from forgedsl.hir.evaluate import show
from forgedsl.hir.instantiate import ModuleNames, instantiate
from forgedsl.hir.modules import Loader, Module
from forgedsl.hir.overlay import Override, parse_override, read_set_file
from forgedsl.hir.resolve import resolve
from forgedsl.hir.specialize import constant
from forgedsl.hir.table import Entry
from forgedsl.ir.program import Function, Origin, Program, Scope
from forgedsl.mistakes.other_tools import as_override
from forgedsl.records import dataclass
from forgedsl.sizes.hosts import Host
from forgedsl.source import NO_SPAN, SourceFile, Span
from forgedsl.syntax import ast, decode, parse, read_source

PARAMS = "<Python: params>"
"""file of parameters that Python gives as values"""

__all__ = ["Host", "Loaded", "load", "load_functions", "load_text", "overrides_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A file that was read. `file` is None if it cannot be read. `program` is None if the file
    cannot be read, has syntax errors, or has no such profile. With other errors both exist: check
    `reporter.has_errors` before relying on the program's values."""

    program: Program | None
    reporter: Reporter
    sources: dict[str, SourceFile]
    file: ast.File | None = None

    @property
    def checked(self) -> Program:
        """The program, or SourceError with the diagnostics if it has errors."""
        if self.program is None or self.reporter.has_errors:
            raise SourceError(tuple(self.reporter), self.sources)
        return self.program


def load(
    path: str | Path,
    *,
    profile: str = "auto",
    overrides: Iterable[str | Override] = (),
    set_files: Iterable[str | Path] = (),
    host: Host | None = None,
    allow_missing_params: bool = False,
) -> Loaded:
    """Read, parse and resolve the file at `path`. `overrides` are texts `a.b=v`. With
    `allow_missing_params`, parameters of a module may have no value."""
    expect(path, str | PathLike, "`path` must be the path of a .forge file")
    reporter = Reporter()
    loader = Loader(reporter)
    source = read_source(Path(path), str(path), reporter)
    if source is None:
        return Loaded(
            program=None, reporter=reporter, sources={str(path): SourceFile(str(path), "")}
        )
    folder = Path(path).parent
    return _load(source, folder, loader, profile, overrides, set_files, host, allow_missing_params)


def load_text(
    text: str,
    name: str = "<text>",
    *,
    folder: Path | None = None,
    profile: str = "auto",
    overrides: Iterable[str | Override] = (),
    host: Host | None = None,
) -> Loaded:
    """Parse and resolve `text`; imports are looked up in `folder`."""
    expect(text, str, "`text` must be .forge text")
    reporter = Reporter()
    loader = Loader(reporter)
    source = decode(text.encode("utf-8", "surrogatepass"), name, reporter)
    if source is None:
        return Loaded(program=None, reporter=reporter, sources={name: SourceFile(name, "")})
    return _load(source, folder, loader, profile, overrides, (), host)


def _load(
    source: SourceFile,
    folder: Path | None,
    loader: Loader,
    profile: str,
    overrides: Iterable[str | Override],
    set_files: Iterable[str | Path],
    host: Host | None,
    allow_missing_params: bool = False,
) -> Loaded:
    expect(profile, str, '`profile` must be the name of a profile, or "none"')
    expect(host, Host | None, "`host` must be a forgedsl.api.Host")
    overrides = listed(overrides, str | Override, 'overrides=["group=4"]')
    set_files = listed(set_files, str | PathLike, 'set_files=["mine.toml"]')
    reporter = loader.reporter
    loader.sources[source.name] = source
    file = parse(source, reporter)
    program = None
    if not reporter.has_errors:
        ctx = Context(reporter)
        layered = overrides_of(overrides, set_files, ctx, loader.sources)
        program = resolve(
            file,
            name=source.name,
            folder=folder,
            loader=loader,
            profile=profile,
            overrides=layered,
            host=host,
            allow_missing_params=allow_missing_params,
        )
    return Loaded(program=program, reporter=reporter, sources=loader.sources, file=file)


def listed(given: Iterable[Any], kinds: Any, example: str) -> tuple[Any, ...]:
    """Check that `given` is a list of `kinds`. A string or a mapping is refused, though it is
    iterable."""
    said = f"write a list, {example}"
    if isinstance(given, str | Mapping):
        raise TypeError(f"{said}, not {given!r}")
    expect(given, Iterable, said)
    items = tuple(given)
    for item in items:
        expect(item, kinds, said)
    return items


def overrides_of(
    overrides: Iterable[str | Override],
    set_files: Iterable[str | Path],
    ctx: Context,
    sources: dict[str, SourceFile],
) -> tuple[Override, ...]:
    """Parse overrides, in the order they apply: those of `set_files` first, then `overrides`."""
    found: list[Override] = []
    for path in set_files:
        name = str(path)
        sources.setdefault(name, SourceFile(name, ""))
        found.extend(read_set_file(Path(path), name, ctx))
    for item in overrides:
        override = parse_override(item) if isinstance(item, str) else item
        if override is None:
            name = surface.typed()
            sources[name] = SourceFile(name, str(item))
            message = f"`{item}` is not an override"
            help_text = as_override(str(item))
            ctx.error("F121", message, Span(name, 0, len(str(item))), help=help_text)
        else:
            found.append(override)
    return tuple(found)


def load_functions(
    source: str | Path, *, params: dict[str, object] | None = None
) -> tuple[dict[str, Function], dict[str, SourceFile]]:
    """Load a file of functions (no flow): its functions by name, and the texts their spans refer
    to.

    `source` is a path (a Path, or text that ends in .forge), the name of a standard module
    ("std/rl") or of a function in one ("grpo"), or .forge text. `params` override the module's
    parameters. Raises SourceError with diagnostics.
    """
    expect(source, str | Path, "`source` must be a path, .forge text, or a name of the library")
    expect(params, Mapping | None, "`params` must map names to values: params={...}")
    reporter = Reporter()
    loader = Loader(reporter)
    module = _module(source, loader)
    if module is None or reporter.has_errors:
        raise SourceError(tuple(reporter), loader.sources)
    ctx = Context(reporter)
    entries = _param_entries(params or {}, loader)
    names = ModuleNames(Scope(), ctx)
    scope = instantiate(module, entries, names, loader, ctx)
    if reporter.has_errors:
        raise SourceError(tuple(reporter), loader.sources)
    functions = {n: f for n, f in scope.names.items() if isinstance(f, Function)}
    return functions, loader.sources


def _module(source: str | Path, loader: Loader) -> Module | None:
    from forgedsl.hir.modules import standard_modules

    text = str(source)
    if isinstance(source, Path) or (text.endswith(".forge") and "\n" not in text):
        path = Path(source)
        found = read_source(path, text, loader.reporter)
        folder: Path | None = path.parent
    elif text in standard_modules():
        return loader.standard(text)
    elif text.isidentifier():
        return loader.standard("std/rl")
    else:
        found = decode(text.encode("utf-8", "surrogatepass"), "<loss>", loader.reporter)
        folder = None
    if found is None:
        return None
    loader.sources[found.name] = found
    file = parse(found, loader.reporter)
    return Module(name="", file=file, folder=folder, is_standard=False)


def _param_entries(params: dict[str, object], loader: Loader) -> dict[str, Entry]:
    """Convert Python values to parameter entries. Like `--set`, they replace the values of the
    file and of profiles."""
    entries, text = {}, ""
    for name, value in params.items():
        if constant(value, NO_SPAN) is None:
            raise TypeError(f"parameter {name!r} is a scalar, not {value!r}")
        start, shown = len(text), show(value)
        at = start + len(f"{name} = ")
        expr = constant(value, Span(PARAMS, at, at + len(shown)))
        assert expr is not None
        origin = Origin(layer="set", detail=f"params[{name!r}]", span=NO_SPAN)
        name_span = Span(PARAMS, start, start + len(name))
        entries[name] = Entry(expr=expr, origin=origin, path_span=name_span)
        text += f"{name} = {shown}\n"
    if text:
        loader.sources[PARAMS] = SourceFile(PARAMS, text)
    return entries
