"""Open texts of an editor, and the compiler's results for them.

    path + texts that are open -> Document: tree, programs by profile, findings, the plan

An open text replaces its file, in imports too. Results are computed on demand and cached until a
text changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.hir.modules import Loader, standard_path
from forgedsl.hir.resolve import resolve
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Program
from forgedsl.lint.config import DEFAULT, Config, ConfigError, load
from forgedsl.lint.engine import AS_WRITTEN, Held, Linted, lint_source
from forgedsl.lint.facts import MOST_FACTS, Facts
from forgedsl.lint.worker import Worker
from forgedsl.plan.plan import Plan
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast, decode, parse

STANDARD = "forgedsl:"
"""prefix of the names of texts of the standard library"""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A text resolved under one profile. Values with a mistake are missing or ERROR."""

    program: Program | None
    reporter: Reporter
    sources: dict[str, SourceFile]


class Workspace:
    """The open texts, by real path."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        """a second process, which checks half of the profiles"""
        self.texts: dict[str, str] = {}
        self._documents: dict[str, Document] = {}
        self.parsed: dict[str, Document] = {}
        """the latest parsed document of each text"""
        self._facts: dict[tuple[object, ...], Facts] = {}

    @property
    def facts(self) -> dict[tuple[object, ...], Facts]:
        """Facts of losses by their structure, which edits elsewhere leave as it is."""
        if len(self._facts) > MOST_FACTS:
            self._facts.clear()
        return self._facts

    def open(self, path: str | Path, text: str) -> None:
        """Set the text of a file: open it, or change it."""
        self.texts[_key(path)] = text
        self.forget()

    def close(self, path: str | Path) -> None:
        """Close a text; its file is used again."""
        self.texts.pop(_key(path), None)
        self.parsed.pop(_key(path), None)
        self.forget()

    def forget(self) -> None:
        """Drop all cached results, because a file may have changed."""
        self._documents.clear()

    def document(self, path: str | Path) -> Document:
        """Return the document of a text. A file that cannot be read counts as empty."""
        key = _key(path)
        if key not in self._documents:
            self._documents[key] = Document(self, Path(path), self.text(path))
        return self._documents[key]

    def text(self, path: str | Path) -> str:
        """Return the open text, else that of the file."""
        held = self.texts.get(_key(path))
        if held is not None:
            return held
        try:
            return Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def neighbours(self, path: Path) -> list[Path]:
        """Return the .forge files that may import a file: those of its folder and open ones."""
        beside = sorted(path.parent.glob("*.forge"))
        opened = [Path(key) for key in self.texts if key.endswith(".forge")]
        found = {_key(each): each for each in (*beside, *opened)}
        found.pop(_key(path), None)
        return list(found.values())


def _key(path: str | Path) -> str:
    return str(Path(path).resolve())


def real_path(name: str) -> Path:
    """Return the real path of the file that a span names."""
    return standard_path(name) if name.startswith(STANDARD) else Path(name)


class Document:
    """A text with its results. `path` is as the caller wrote it, and is the file name in spans."""

    def __init__(self, workspace: Workspace, path: Path, text: str) -> None:
        self.workspace = workspace
        self.path = path
        self.name = str(path)
        self.source = SourceFile(self.name, text)
        self._states: dict[str, State] = {}
        self._kept: dict[str, Any] = {}

    def kept(self, what: str, make: Callable[[], Any]) -> Any:
        """Return the cached result of a feature for this text, computed on first use."""
        if what not in self._kept:
            self._kept[what] = make()
        return self._kept[what]

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def folder(self) -> Path:
        return self.path.parent

    @cached_property
    def _parsed(self) -> tuple[ast.File, tuple[Diagnostic, ...]]:
        """The syntax tree, and the diagnostics of parsing."""
        reporter = Reporter()
        known = decode(self.text.encode("utf-8", "surrogatepass"), self.name, reporter)
        tree = ast.File(edition=None, decls=(), span=Span(self.name, 0, 0))
        if known is not None:
            tree = parse(self.source, reporter)
        self.workspace.parsed[_key(self.path)] = self
        return tree, tuple(reporter)

    @property
    def settled(self) -> Document:
        """Return this document, or the previous one if this is not parsed yet. Names rarely change
        with a keystroke, and parsing a text with mistakes is slow."""
        if "_parsed" in self.__dict__:
            return self
        return self.workspace.parsed.get(_key(self.path), self)

    @property
    def tree(self) -> ast.File:
        """The syntax tree; of a text with mistakes, the parts that could be parsed."""
        return self._parsed[0]

    @property
    def is_whole(self) -> bool:
        """True if the text has no syntax errors."""
        return not self._parsed[1]

    def state(self, profile: str = AS_WRITTEN) -> State:
        """Return the program under a profile, as far as it can be resolved."""
        if profile not in self._states:
            reporter = Reporter()
            loader = Loader(reporter, {self.name: self.source}, texts=self.workspace.texts)
            program = resolve(
                self.tree,
                name=self.name,
                folder=self.folder,
                loader=loader,
                profile=profile,
                allow_missing_params=True,
            )
            state = State(program=program, reporter=reporter, sources=loader.sources)
            self._states[profile] = state
        return self._states[profile]

    @property
    def program(self) -> Program | None:
        """The program as written."""
        return self.state().program

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles that the file declares."""
        blocks = (d for d in self.tree.decls if isinstance(d, ast.BlockDecl))
        return tuple(d.name for d in blocks if d.kind == "profile" and d.name)

    @cached_property
    def _configured(self) -> tuple[Config, str]:
        try:
            return load(self.path), ""
        except ConfigError as error:
            return DEFAULT, str(error)

    @property
    def config_problem(self) -> str:
        """The mistake in the configuration of lint, which is then ignored; "" if there is none."""
        return self._configured[1]

    @cached_property
    def linted(self) -> Linted:
        """All findings. If the text has syntax errors, only these are reported."""
        if not self.is_whole:
            found = sorted(self._parsed[1], key=lambda d: (d.span.start, d.code))
            return Linted(diagnostics=tuple(found), sources={self.name: self.source})
        return lint_source(
            self.source,
            self.folder,
            config=self._configured[0].for_file(self.path),
            on_disk=True,
            held=Held(
                texts=self.workspace.texts,
                tree=self.tree,
                facts=self.workspace.facts,
                worker=self.workspace.worker,
            ),
        )

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        return self.linted.diagnostics

    @cached_property
    def planned(self) -> tuple[Program, Graph, Plan] | None:
        """The plan of the text as written, if it has no mistakes."""
        from forgedsl.graph.dataflow import build
        from forgedsl.plan.plan import plan

        state = self.state()
        program = state.program
        if not self.is_whole or program is None or state.reporter.has_errors or not program.flow:
            return None
        reporter = Reporter()
        graph = build(program, reporter=reporter)
        if graph is None:
            return None
        made = plan(program, graph, reporter=reporter, base_dir=self.folder)
        return None if made is None or reporter.has_errors else (program, graph, made)
