"""Profiles and overrides: layers that override the file's own settings.

An override is `--set a.b=v`, `a.b=v`, `--a.b v`, or an entry of a --set-file. Its right side is an
expression of the language, but a setting of type string takes the text without quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forgedsl import surface
from forgedsl.diagnostics import Reporter
from forgedsl.hir import imports
from forgedsl.hir.collect import flat
from forgedsl.hir.context import Context
from forgedsl.hir.file import File
from forgedsl.hir.table import RANK, Declared, Entry, part_span
from forgedsl.ir.program import Origin
from forgedsl.mistakes.other_tools import equivalent, misspelt_option, whole_addresses
from forgedsl.mistakes.suggest import did_you_mean
from forgedsl.records import dataclass, replace
from forgedsl.schema.kinds import SYNC
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast, parse_value

NO_MAPPING = "its top level must be a mapping of names to values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An assignment `path = text` from outside of the file; `layer` is `set` or `set-file`."""

    path: str
    text: str
    layer: str = "set"
    shown: str = ""

    @property
    def detail(self) -> str:
        return self.shown or surface.override(f"{self.path}={self.text}")


def parse_override(text: str) -> Override | None:
    """Parse `a.b=v` or `--a.b=v`; None if there is no `=` or no name."""
    path, equals, value = text.partition("=")
    path = path.removeprefix("--").strip()
    if not equals or not path:
        return None
    shown = f"{text}" if text.startswith("--") else surface.override(text)
    return Override(path=path.replace("-", "_"), text=value.strip(), shown=shown)


def read_set_file(path: Path, name: str, ctx: Context) -> tuple[Override, ...]:
    """Read the overrides of a TOML, YAML or JSON file."""
    kinds = {".yaml": ("YAML", _yaml), ".yml": ("YAML", _yaml), ".json": ("JSON", _json)}
    kind, read = kinds.get(path.suffix.lower(), ("TOML", _toml))
    try:
        data = read(path.read_text("utf-8"))
    except OSError as error:
        ctx.error("F121", f"cannot read {name}: {(error.strerror or '').lower()}", Span(name, 0, 0))
        return ()
    except ValueError as error:
        ctx.error("F121", f"{name} is not {kind}: {error}", Span(name, 0, 0))
        return ()
    return tuple(
        Override(path=key, text=text, layer="set-file", shown=f"{name}: {key}")
        for key, text in _flatten(data, "")
    )


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def _json(text: str) -> dict[str, Any]:
    import json

    data: dict[str, Any] = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError(NO_MAPPING)
    return data


def _yaml(text: str) -> dict[str, Any]:
    """Parse YAML. A number may be written 1e-5, which is a string in YAML 1.1. Raises
    ValueError."""
    import re

    import yaml

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    number = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    try:
        data = yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem}{line}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(data, dict | None):
        raise ValueError(NO_MAPPING)
    return data or {}


def _flatten(data: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    """Write a value in .forge syntax. A string stays without quotes, as in --set."""
    import json

    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, list):
        quoted = (json.dumps(v) if isinstance(v, str) else _text(v) for v in value)
        return f"[{', '.join(quoted)}]"
    return str(value)


class Overlay:
    """Writes layers into the table of a file."""

    def __init__(self, file: File) -> None:
        self.collector = file.collector
        self.table = file.table
        self.ctx = file.ctx
        self.modules = file.modules

    def profile(self, profile: ast.BlockDecl, apart: frozenset[str] = frozenset()) -> None:
        """Apply the body of a profile, except items that set a name in `apart`."""
        origin = Origin(layer="profile", detail=f"profile {profile.name}", span=None)
        self.items((item for item in profile.block.items if _head(item) not in apart), origin)

    def items(self, items: Iterable[ast.Item], origin: Origin) -> None:
        """Apply assignments and blocks of settings."""
        for item in items:
            match item:
                case ast.Assign():
                    self.assign(item.path, item.value, origin)
                case ast.Nested(when=None):
                    self._nested(item, origin)
                case ast.Require():
                    self.table.requires.append(item)
                case _:
                    message = "a profile can contain only settings"
                    self.ctx.error("F119", message, item.span)

    def _nested(self, item: ast.Nested, origin: Origin) -> None:
        module = self.modules.get(item.name)
        if module is not None:
            for inner in item.block.items:
                place = inner.name_span if isinstance(inner, ast.Nested) else inner.span
                path = ast.Path(parts=(item.name, _head(inner)), span=place)
                if self._is_settable(module, path):
                    Overlay(module).items((inner,), origin)
            return
        if item.name == SYNC.name and self.table.syncs:
            for parts, inner in flat(item.block.items, (item.name,)):
                self._sync(parts, inner, origin)
            return
        declared = self._find(item.name, item.name_span)
        if declared is None:
            return
        if declared.kind.single:
            self.ctx.error("F119", f"write `{item.name} = ...`", item.name_span)
            return
        label_span = item.label_span
        self.collector.set_label(declared, item.label, label_span, item.name_span, origin.layer)
        self.collector.fill(declared, item.block.items, origin)

    def override(self, override: Override, sources: dict[str, SourceFile]) -> None:
        """Apply one override. Its text becomes a source file of its own, for messages."""
        text = f"{override.path}={override.text}"
        from_file = override.layer == "set-file"
        of_file = f"<{override.detail.partition(':')[0]}: {override.path}>"
        file = of_file if from_file else surface.typed(override.path)
        source = SourceFile(file, text)
        sources[file] = source
        span = Span(file, 0, len(override.path))
        parts = tuple(override.path.split("."))
        path = ast.Path(parts=parts, span=span)
        expr = self._value(override, source, path)
        if expr is not None:
            origin = Origin(layer=override.layer, detail=override.detail, span=None)
            self.assign(path, expr, origin)

    def _value(self, override: Override, source: SourceFile, path: ast.Path) -> ast.Expr | None:
        offset = len(override.path) + 1
        whole = Span(source.name, offset, len(source.text))
        quoted = override.text[:1] == '"' and override.text[-1:] == '"' and len(override.text) > 1
        if self._is_text(path) and not quoted and override.text not in {"auto", "none"}:
            return ast.String(value=override.text, span=whole)
        if not override.text:
            self.ctx.error("F121", f"`{override.path}` has no value", path.span)
            return None
        # the path is blanked out, so that spans of the value are offsets in the whole text
        padded = SourceFile(source.name, " " * offset + override.text)
        problems = Reporter()
        expr = parse_value(padded, problems)
        if expr is None:
            huge = any(problem.code == "S019" for problem in problems)
            word = override.text.isprintable() and " " not in override.text and not huge
            if word and not any(c in override.text for c in '()[]"'):
                return ast.String(value=override.text, span=whole)
            for problem in problems:
                self.ctx.reporter.report(problem)
        return expr

    def _is_text(self, path: ast.Path) -> bool:
        """True if the setting takes a string, so that its text needs no quotes."""
        module = self.modules.get(path.parts[0])
        if module is not None:
            return len(path.parts) > 1 and Overlay(module)._is_text(imports.inner(path))
        param = self.table.params.get(path.parts[0])
        if param is not None:
            return isinstance(param.type, ast.NamedType) and param.type.name == "str"
        declared = self.table.addressed(path.parts[0])
        if declared is None:
            return False
        setting = declared.kind.setting(".".join(path.parts[1:]))
        return setting is not None and setting.type.base == "str"

    def assign(self, path: ast.Path, expr: ast.Expr, origin: Origin) -> None:
        """Apply `path = expr` of a profile or an override."""
        head, rest = path.parts[0], path.parts[1:]
        placed = replace(origin, span=expr.span)
        module = self.modules.get(head)
        if module is not None:
            if self._is_settable(module, path):
                Overlay(module).assign(imports.inner(path), expr, origin)
            return
        if head in self.table.params:
            if rest:
                self.ctx.error("F103", f"parameter `{head}` has no settings", part_span(path, 1))
                return
            self._param(head, Entry(expr=expr, origin=placed, path_span=path.span))
            return
        if isinstance(self.table.imports.get(head), ast.ImportForge) and len(rest) == 1:
            self._param(path.text, Entry(expr=expr, origin=placed, path_span=part_span(path, 1)))
            return
        if head == SYNC.name and self.table.syncs:
            item = ast.Assign(path=path, value=expr, span=path.span.to(expr.span))
            self._sync(path.parts, item, origin)
            return
        declared = self._find(head, part_span(path, 0, 0), path.text)
        if declared is None:
            return
        if declared.kind.single:
            rest = ("value",)
        if not rest:
            if declared.kind.labels and isinstance(expr, ast.Path):
                self.collector.set_label(declared, expr.text, expr.span, expr.span, origin.layer)
                return
            message = f"`{head}` is a {declared.kind.name}; name one of its settings"
            self.ctx.error("F113", message, path.span, help=f"`{head}.NAME = ...`")
            return
        span = path.span if declared.kind.single else part_span(path, 1)
        self.collector.enter(declared, rest, span, expr, origin)

    def _sync(self, parts: tuple[str, ...], item: ast.Item, origin: Origin) -> None:
        """Apply a setting of syncs: `sync.every` of all syncs in the flow, `sync.GENERATOR.every`
        of one."""
        if not isinstance(item, ast.Assign):
            self.ctx.error("F119", "a sync can contain only settings", item.span)
            return
        if len(parts) == 1:
            message = f"`{SYNC.name}` is a statement of the flow; name one of its settings"
            help_text = f"`{SYNC.name}.NAME = ...`"
            self.ctx.error("F113", message, item.path.span, help=help_text)
            return
        last = item.path.span
        span = Span(last.file, max(last.start, last.end - len(parts[-1])), last.end)
        named = ".".join(parts[:-1])
        known = {declared.name for declared in self.table.syncs.values()}
        if named != SYNC.name and named not in known:
            what = "the flow has no sync"
            self.ctx.unknown("F101", what, named, item.path.span, sorted(known))
            return
        for declared in self.table.syncs.values():
            if named in (SYNC.name, declared.name):
                self.collector.enter(declared, parts[-1:], span, item.value, origin)

    def _is_settable(self, module: File, path: ast.Path) -> bool:
        """True if a module has the setting that a path names; report it if not."""
        if len(path.parts) > 1 and imports.is_known(module, path.parts[1]):
            return True
        assert module.parent is not None
        imports.unknown_member(module.parent, path)
        return False

    def _param(self, name: str, entry: Entry) -> None:
        before = self.table.param_entries.get(name)
        if before is None or RANK[before.origin.layer] <= RANK[entry.origin.layer]:
            self.table.param_entries[name] = entry

    def _settings(self) -> Iterator[tuple[str, str]]:
        """Return all settings that can be assigned: (declaration, setting)."""
        for name, entry in self.table.settable().items():
            yield from ((name, setting.name) for setting in entry.kind.settings)

    def _find(self, name: str, span: Span, address: str = "") -> Declared | None:
        declared = self.table.addressed(name)
        if declared is None:
            what = "there is no setting or parameter"
            if several := self.table.of_kind(name):
                names = ", ".join(f"`{each.name}`" for each in several)
                message = f"the file has {len(several)} declarations of `{name}`"
                self.ctx.error("F101", message, span, help=f"name one of them: {names}")
                return None
            meant = whole_addresses(address or name, self._settings())
            if meant:
                help_text = did_you_mean(meant)
                self.ctx.error("F101", f"{what} `{address or name}`", span, help=help_text)
                return None
            is_typed = surface.is_typed(span.file)
            option = misspelt_option(name) if is_typed and not equivalent(name) else ""
            end = address.partition(".")[2]
            help_text = option or did_you_mean(whole_addresses(end, self._settings()))
            self.ctx.unknown("F101", what, name, span, self.table.addresses(), help=help_text)
        return declared


def _head(item: ast.Item) -> str:
    """Return the first name of the path that an item of a profile sets."""
    match item:
        case ast.Assign():
            return item.path.parts[0]
        case ast.Nested():
            return item.name
    return ""
