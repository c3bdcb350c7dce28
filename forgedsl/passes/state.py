"""State that passes hand on: the request, the results so far, and the reporter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Reporter
from forgedsl.hir.modules import Loader
from forgedsl.hir.overlay import Override
from forgedsl.ir.program import Program
from forgedsl.records import dataclass
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.ir.graph import Graph
    from forgedsl.lower.build import Lowered
    from forgedsl.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request of a compilation. `host` is None if no host was probed."""

    path: Path
    profile: str = "auto"
    overrides: tuple[str | Override, ...] = ()
    set_files: tuple[str | Path, ...] = ()
    host: Host | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Inputs and products of the passes. A product is None until its pass has run."""

    request: Request
    loader: Loader
    source: SourceFile
    tokens: tuple[Any, ...] | None = None
    ast: ast.File | None = None
    hir: Program | None = None
    graph: Graph | None = None
    plan: Plan | None = None
    job: Lowered | None = None

    @property
    def reporter(self) -> Reporter:
        return self.loader.reporter

    @property
    def folder(self) -> Path:
        """Folder that paths in the file are relative to."""
        return self.request.path.parent
