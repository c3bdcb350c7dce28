"""Documents a .forge file in Markdown, from its source and its `##` comments.

    ast.File, source, functions  ->  parameters, declarations, mathematics, flow, profiles

Parameters without a `##` comment are described by the comment at the end of their line. The first
`##` comment of a file with a flow describes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.diagnostics import Reporter
from forgedsl.format.expressions import Expressions
from forgedsl.format.notes import Notes
from forgedsl.ir.program import Function
from forgedsl.losses.infer import infer
from forgedsl.losses.render_math import render
from forgedsl.operations.registry import declarations
from forgedsl.records import dataclass, field
from forgedsl.reference.markdown import block, code, join, table
from forgedsl.schema.kinds import KINDS, SERVICES, SINGLETONS
from forgedsl.settings import Kind
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast, trivia

MATHEMATICAL = ("loss", "advantage", "filter")
TITLES = {
    "model": "Models",
    "dataset": "Data",
    "service": "Services",
    "reward": "Rewards",
    "rubric": "Rubrics",
    "environment": "Environments",
    **{kind: each.heading for kind, each in declarations().items()},
    "advantage": "Advantages",
    "filter": "Filters",
    "fn": "Functions",
    "loss": "Losses",
    "flow": "Flow",
    "schedule": "Schedule",
    "eval": "Evaluation",
}
"""headings in order; kinds without one are under `Run`"""


@dataclass(slots=True, kw_only=True)
class Page:
    """Writer of a file's page. `drawing` is a picture of its flow."""

    title: str
    file: ast.File
    source: SourceFile
    functions: Mapping[str, Function]
    drawing: str = ""
    printer: Expressions = field(default_factory=lambda: Expressions(Notes(None)))

    def text(self) -> str:
        """The whole page."""
        parts = [f"# {self.title}", self._about(), self._imports(), self._params()]
        parts += self._requirements()
        others = [d for d in self.file.decls if _kind(d) and _kind(d) not in (*TITLES, "profile")]
        for kind, title in TITLES.items():
            found = [d for d in self.file.decls if _kind(d) == kind]
            if found:
                parts.append(f"## {title}")
                parts += [self.declaration(d) for d in found]
        if others:
            parts.append("## Run")
            parts += [self.declaration(d) for d in others]
        return join([*parts, *self._profiles()])

    # ---- parts before the declarations

    def is_pipeline(self) -> bool:
        """True if the file trains something."""
        return any(_kind(d) == "flow" for d in self.file.decls)

    def _about(self) -> str:
        first = self._first_documented()
        return "" if first is None else str(getattr(first, "doc", ""))

    def _first_documented(self) -> ast.Decl | None:
        """Return the declaration whose comment describes the whole file."""
        if not self.is_pipeline():
            return None
        return next((d for d in self.file.decls if getattr(d, "doc", "")), None)

    def _doc(self, decl: ast.Decl) -> str:
        return "" if decl is self._first_documented() else str(getattr(decl, "doc", ""))

    def _imports(self) -> str:
        found = [d for d in self.file.decls if isinstance(d, ast.ImportForge | ast.ImportPython)]
        if not found:
            return ""
        return "Uses " + ", ".join(code(self.written(d.span)) for d in found) + "."

    def _params(self) -> str:
        found = [d for d in self.file.decls if isinstance(d, ast.Param)]
        if not found:
            return ""
        behind = {
            self.source.position(c.span.start)[0]: c.text.lstrip("# ")
            for c in trivia.comments(self.source)
            if not c.own_line
        }
        rows = [
            (
                code(d.name),
                code(self.printer.type(d.type)),
                code("" if d.default is None else self.printer.flat(d.default)) or "*required*",
                self._doc(d) or behind.get(self.source.position(d.span.end)[0], ""),
            )
            for d in found
        ]
        return join(["## Parameters", table(("name", "type", "default", "meaning"), rows)])

    def _requirements(self) -> list[str]:
        found = [d for d in self.file.decls if isinstance(d, ast.Require)]
        if not found:
            return []
        lines = [
            f"- {code(self.printer.flat(d.test))}" + (f": {d.message}" if d.message else "")
            for d in found
        ]
        return ["Required:", "\n".join(lines)]

    # ---- declarations

    def declaration(self, decl: ast.Decl) -> str:
        """Document a declaration."""
        match decl:
            case ast.FnDecl():
                return self.function(decl)
            case ast.BindDecl():
                return join([f"### {decl.name}", self._doc(decl), self._code(decl.span)])
            case ast.BlockDecl(kind="flow"):
                return join([self._doc(decl), self._code(decl.span), self.drawing])
            case ast.BlockDecl():
                return self._block(decl)
            case _:
                return self._code(decl.span)

    def function(self, decl: ast.FnDecl) -> str:
        """Document a function: its comment, its source, its mathematics."""
        function = self.functions.get(decl.name)
        computed = ""
        if decl.kind in MATHEMATICAL and function is not None:
            computed = mathematics(function)
        return join([f"### {decl.name}", self._doc(decl), self._code(decl.span), computed])

    def _block(self, decl: ast.BlockDecl) -> str:
        name = decl.name or decl.kind
        if decl.kind in SINGLETONS and decl.name:
            name = f"{decl.kind} {decl.name}"  # schedule async
        if decl.ctor is not None:
            name += f" : {self.printer.flat(decl.ctor)}"
        kind = schema_of(decl)
        rows = [
            (code(path), code(self._value(value)), self._meaning(kind, path))
            for path, value in _assignments(decl.block, "")
        ]
        settings = table(("setting", "value", "meaning"), rows) if rows else "All by default."
        return join([f"### {name}", self._doc(decl), settings])

    def _value(self, value: ast.Expr) -> str:
        text = self.printer.flat(value)
        return text if len(text) <= 100 else f"{text[:97]}..."

    def _meaning(self, kind: Kind | None, path: str) -> str:
        setting = None if kind is None else kind.setting(path)
        return "" if setting is None else setting.doc

    def _profiles(self) -> list[str]:
        found = [d for d in self.file.decls if isinstance(d, ast.BlockDecl) and d.kind == "profile"]
        if not found:
            return []
        parts = ["## Profiles"]
        for decl in found:
            parts += [f"### {decl.name}", self._doc(decl)]
            if decl.when is not None:
                when = code(self.printer.flat(decl.when))
                parts.append(f"Chosen by itself when {when}.")
            parts.append(self._code(decl.block.span))
        return parts

    # ---- text as it was written

    def written(self, span: Span) -> str:
        """Return the source of a node."""
        return self.source.text[span.start : span.end]

    def _code(self, span: Span) -> str:
        return block(self.written(span), "text")


def mathematics(function: Function) -> str:
    """Return the formula of a loss, advantage or filter, and its gradient."""
    required = [f.name for f in function.fields
                if isinstance(f.type, ast.NamedType) and f.default is None]  # fmt: skip
    reporter = Reporter()
    tree = infer(function, reporter, dict.fromkeys(required, 1.0))
    if tree is None:
        return "It has errors: " + "; ".join(d.message for d in reporter) + "."
    shown = f"With {', '.join(f'{name} = 1' for name in required)}:" if required else ""
    return join([shown, block(render(tree))])


def schema_of(decl: ast.BlockDecl) -> Kind | None:
    """The schema of a declaration with settings."""
    if decl.kind == "service":
        ctor = decl.ctor.function.text if isinstance(decl.ctor, ast.Call) else ""
        return SERVICES.get(ctor)
    return KINDS.get(decl.kind)


def _kind(decl: ast.Decl) -> str:
    """Return the kind of a declaration; of an assignment, the path of its setting."""
    if isinstance(decl, ast.FnDecl | ast.BindDecl | ast.BlockDecl):
        return decl.kind
    return decl.path.text if isinstance(decl, ast.Assign) else ""


def _assignments(body: ast.Block, prefix: str) -> Iterator[tuple[str, ast.Expr]]:
    """Settings of a block and of the blocks in it, by path."""
    for item in body.items:
        if isinstance(item, ast.Assign):
            yield prefix + item.path.text, item.value
        elif isinstance(item, ast.Nested):
            yield from _assignments(item.block, f"{prefix}{item.name}.")
