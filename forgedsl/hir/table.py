"""Table of the declarations of a file and, per declaration, the assignments to its settings.

The file, the chosen profile and the overrides each write `Entry`s; later layers replace earlier
ones. `hir.collect` enters the file's AST, `hir.overlay` the other layers.
"""

from __future__ import annotations

from typing import Protocol

from forgedsl.ir.program import Origin, Value
from forgedsl.records import dataclass, field
from forgedsl.settings import Kind
from forgedsl.source import Span
from forgedsl.syntax import ast

LAYERS = ("default", "module", "file", "profile", "set-file", "set")
RANK = {layer: rank for rank, layer in enumerate(LAYERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An assignment: the expression, the span of its path, and the layer that wrote it."""

    expr: ast.Expr
    origin: Origin
    path_span: Span


class Owner(Protocol):
    """The file that contains a declaration."""

    def setting(self, declared: Declared, name: str) -> Value:
        """Return the value of a setting of the declaration."""


@dataclass(slots=True, kw_only=True)
class Declared:
    """A declaration with settings, before evaluation. `name` is its name in the program
    (`m.generator`); `owner` resolves the file that contains it."""

    kind: Kind
    name: str
    owner: Owner | None = None
    # None: a singleton that the file does not declare
    node: ast.BlockDecl | ast.BindDecl | ast.FnDecl | None
    ctor: str | None = None
    ctor_args: tuple[ast.Path | ast.String, ...] = ()
    head: bool = False
    """`titan(value_head(policy))`"""
    label: str | None = None
    label_layer: str = "default"
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def span(self) -> Span:
        return self.node.span if self.node is not None else Span("", 0, 0)

    @property
    def name_span(self) -> Span:
        if self.node is None:
            return Span("", 0, 0)
        return self.node.name_span or self.node.kind_span


@dataclass(slots=True, kw_only=True)
class Table:
    """Everything that a file declares, by name. `declared` also has the declarations of its
    modules."""

    params: dict[str, ast.Param] = field(default_factory=dict)
    param_entries: dict[str, Entry] = field(default_factory=dict)
    declared: dict[str, Declared] = field(default_factory=dict)
    functions: dict[str, ast.FnDecl | ast.BindDecl] = field(default_factory=dict)
    imports: dict[str, ast.ImportForge | ast.ImportPython] = field(default_factory=dict)
    module_settings: list[ast.Assign | ast.Nested] = field(default_factory=list)
    """`m.generator.replicas = 2`, `m { generator { replicas = 2 } }`"""
    profiles: dict[str, ast.BlockDecl] = field(default_factory=dict)
    requires: list[ast.Require] = field(default_factory=list)
    flow: ast.BlockDecl | None = None
    syncs: dict[Span, Declared] = field(default_factory=dict)
    """syncs of the flow by span; each is named `sync.GENERATOR`"""
    spans: dict[str, Span] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Declared]:
        """Return the declarations of a kind, such as `eval`."""
        return [declared for declared in self.declared.values() if declared.kind.name == kind]

    def addressed(self, name: str) -> Declared | None:
        """Return the declaration that a profile or an override means: the one with this name, or
        the only one of this kind."""
        same = self.of_kind(name)
        return self.declared.get(name) or (same[0] if len(same) == 1 else None)

    def addresses(self) -> tuple[str, ...]:
        """Return every path that a profile or an override can name."""
        return (*self.params, *self.settable(), *self.imports)

    def settable(self) -> dict[str, Declared]:
        """Return all declarations with settings, by name. `sync` stands for all syncs of the
        flow."""
        syncs = list(self.syncs.values())
        every = {"sync": syncs[0]} if syncs else {}
        return {**self.declared, **every, **{each.name: each for each in syncs[1:] and syncs}}


def part_span(path: ast.Path, first: int, last: int | None = None) -> Span:
    """Return the span of parts `first` to `last` of a dotted path."""
    if len(path.text) != path.span.end - path.span.start:
        return path.span  # written with spaces around a dot
    start = path.span.start + sum(len(part) + 1 for part in path.parts[:first])
    parts = path.parts[first:] if last is None else path.parts[first : last + 1]
    return Span(path.span.file, start, start + len(".".join(parts)))
