"""Texts that are open in an editor, and what the compiler makes of them.

    path + texts that are open -> Document: tree, programs by profile, findings, the plan

A text that is open counts in place of its file, in imports too. Everything is worked out when it is
first asked for and kept until a text changes.
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
from forgedsl.lint.engine import AS_WRITTEN, Linted, lint_source
from forgedsl.plan.plan import Plan
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast, decode, parse

STANDARD = "forgedsl:"
"""begins the names of texts of the standard library"""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A text resolved under one profile. Values that have a mistake are missing or ERROR."""

    program: Program | None
    reporter: Reporter
    sources: dict[str, SourceFile]


class Workspace:
    """The open texts, by real path."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._documents: dict[str, Document] = {}
        self.parsed: dict[str, Document] = {}
        """the newest state of each text whose tree is known"""

    def open(self, path: str | Path, text: str) -> None:
        """Take a text in place of the file, or a new state of it."""
        self.texts[_key(path)] = text
        self.forget()

    def close(self, path: str | Path) -> None:
        """The file counts again."""
        self.texts.pop(_key(path), None)
        self.parsed.pop(_key(path), None)
        self.forget()

    def forget(self) -> None:
        """Look at everything anew: a file may have changed."""
        self._documents.clear()

    def document(self, path: str | Path) -> Document:
        """What is known of a text. A file that cannot be read counts as empty."""
        key = _key(path)
        if key not in self._documents:
            self._documents[key] = Document(self, Path(path), self.text(path))
        return self._documents[key]

    def text(self, path: str | Path) -> str:
        """The text that counts."""
        held = self.texts.get(_key(path))
        if held is not None:
            return held
        try:
            return Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def neighbours(self, path: Path) -> list[Path]:
        """The .forge files that may import it: those of its folder and those that are open."""
        beside = sorted(path.parent.glob("*.forge"))
        opened = [Path(key) for key in self.texts if key.endswith(".forge")]
        found = {_key(each): each for each in (*beside, *opened)}
        found.pop(_key(path), None)
        return list(found.values())


def _key(path: str | Path) -> str:
    return str(Path(path).resolve())


def real_path(name: str) -> Path:
    """Where the text that a span names can be read."""
    return standard_path(name) if name.startswith(STANDARD) else Path(name)


class Document:
    """One text. `path` is how it was asked for, which is the name in its spans."""

    def __init__(self, workspace: Workspace, path: Path, text: str) -> None:
        self.workspace = workspace
        self.path = path
        self.name = str(path)
        self.source = SourceFile(self.name, text)
        self._states: dict[str, State] = {}
        self._kept: dict[str, Any] = {}

    def kept(self, what: str, make: Callable[[], Any]) -> Any:
        """What a feature has worked out of this text, made when it is first asked for."""
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
        """The tree, and what hinders reading it whole."""
        reporter = Reporter()
        known = decode(self.text.encode("utf-8", "surrogatepass"), self.name, reporter)
        tree = ast.File(edition=None, decls=(), span=Span(self.name, 0, 0))
        if known is not None:
            tree = parse(self.source, reporter)
        self.workspace.parsed[_key(self.path)] = self
        return tree, tuple(reporter)

    @property
    def settled(self) -> Document:
        """This state, or the one before if the tree of this is not known yet: what has names does
        not change with a keystroke, and reading a text with mistakes takes a while."""
        if "_parsed" in self.__dict__:
            return self
        return self.workspace.parsed.get(_key(self.path), self)

    @property
    def tree(self) -> ast.File:
        """The syntax tree: of a text with mistakes, what could be read."""
        return self._parsed[0]

    @property
    def is_whole(self) -> bool:
        """Whether the text is without syntax errors."""
        return not self._parsed[1]

    def state(self, profile: str = AS_WRITTEN) -> State:
        """The program under a profile, as far as it can be made."""
        if profile not in self._states:
            reporter = Reporter()
            loader = Loader(reporter, {self.name: self.source}, texts=self.workspace.texts)
            program = resolve(
                self.tree,
                name=self.name,
                folder=self.folder,
                loader=loader,
                profile=profile,
                allow_open=True,
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
        """What is wrong with the configuration of lint, which then does not count."""
        return self._configured[1]

    @cached_property
    def linted(self) -> Linted:
        """Every finding. A text with syntax errors has those alone."""
        if not self.is_whole:
            found = sorted(self._parsed[1], key=lambda d: (d.span.start, d.code))
            return Linted(diagnostics=tuple(found), sources={self.name: self.source})
        return lint_source(
            self.source,
            self.folder,
            config=self._configured[0].for_file(self.path),
            on_disk=True,
            texts=self.workspace.texts,
        )

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        return self.linted.diagnostics

    @cached_property
    def planned(self) -> tuple[Program, Graph, Plan] | None:
        """What the text as written is planned to, if it is without a mistake."""
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
