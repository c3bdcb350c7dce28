"""What rules look at: a resolved program with its losses, advantages and filters as typed trees.

    Program  ->  View: losses (LossView), groups (advantages and filters), facts of the flow

Trees are inferred once per view and shared by all rules; everything derived from them is computed
when a rule first asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.hir.ir import Constant, Decl, FlowStep, Function, Program, Scope, Value
from forgedsl.lint.losses import LossView
from forgedsl.losses.intervals import Analysis
from forgedsl.losses.sites import Located, locate
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast
from forgedsl.types.intervals import INF, Interval, point

Trees = dict[tuple[object, ...], tuple[Located | None, tuple[Diagnostic, ...]]]
"""Trees of functions by what they depend on, shared by the views of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """An advantage or a filter as a tree."""

    function: Function
    located: Located
    group_size: Interval

    @property
    def analysis(self) -> Analysis:
        tree = self.located.tree
        return Analysis(tree.values, [v for _, v in tree.outputs], group_size=self.group_size)


class View:
    """One program under one profile. `file` is its syntax tree, `folder` where it stands."""

    def __init__(
        self,
        program: Program,
        reporter: Reporter,
        *,
        file: ast.File,
        folder: Path | None,
        sources: dict[str, SourceFile],
        known: Trees | None = None,
    ) -> None:
        self.program = program
        self.file = file
        self.folder = folder
        self.sources = sources
        self.located: dict[str, Located] = {}
        for name, function in program.functions.items():
            if function.kind == "fn" or not is_closed(function):
                continue
            own = function.module == ""
            if own or name in self._used:
                found = self._locate(function, reporter if own else Reporter(), known)
                if found is not None:
                    self.located[name] = found

    def _locate(
        self, function: Function, reporter: Reporter, known: Trees | None
    ) -> Located | None:
        """The tree of a function, from another view if nothing it can read is different here."""
        if known is None:
            return locate(function, reporter)
        key = (function.name, function.span, _constants(function.scope), _defaults(function))
        if key not in known:
            problems = Reporter()
            known[key] = locate(function, problems), tuple(problems)
        located, diagnostics = known[key]
        for diagnostic in diagnostics:
            reporter.report(diagnostic)
        return located

    @cached_property
    def _used(self) -> frozenset[str]:
        """Names of functions that the flow calls or minimizes."""
        calls = {step.receiver for step in self.program.flow if step.op in ("call", "keep")}
        return frozenset(calls | {step.settings["loss"].value.name for step in self.steps})

    @cached_property
    def steps(self) -> tuple[FlowStep, ...]:
        return tuple(step for step in self.program.flow if step.op == "step")

    @cached_property
    def losses(self) -> tuple[LossView, ...]:
        """The losses of the file and those that the flow minimizes."""
        found = []
        for name, located in self.located.items():
            if located.tree.kind != "loss":
                continue
            step = next((s for s in self.steps if s.settings["loss"].value.name == name), None)
            function = self.program.functions[name]
            found.append(LossView(self.program, function, located, step))
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[GroupView, ...]:
        """Advantages and filters."""
        return tuple(
            GroupView(
                function=self.program.functions[name],
                located=located,
                group_size=self.group_size,
            )
            for name, located in self.located.items()
            if located.tree.kind in ("advantage", "filter")
        )

    @cached_property
    def group_size(self) -> Interval:
        """Completions per prompt, as the flow samples them; two or more where it does not say."""
        sizes = {step.settings["n"].value for step in self.program.flow if step.op == "sample"}
        return point(float(sizes.pop())) if len(sizes) == 1 else Interval(2.0, INF, nonzero=True)

    def samplers(self) -> Iterator[Decl]:
        """The generators whose rollouts are trained on."""
        names = dict.fromkeys(s.receiver for s in self.program.flow if s.op == "sample")
        for name in names:
            yield self.program.services[name]

    @cached_property
    def max_tokens(self) -> int | None:
        """The longest completion of the flow's sampler."""
        found = [s.settings["sampling.max_tokens"].value for s in self.samplers()]
        numbers = [n for n in found if isinstance(n, int)]
        return max(numbers, default=None)


def _constants(scope: Scope) -> tuple[tuple[str, str], ...]:
    """The values of all names that a body can read."""
    found: list[tuple[str, str]] = []
    for name, value in scope.names.items():
        if isinstance(value, Constant):
            found.append((name, repr(value.value)))
        elif isinstance(value, Scope):
            found += ((f"{name}.{inner}", text) for inner, text in _constants(value))
    return tuple(found)


def _defaults(function: Function) -> tuple[tuple[str, str], ...]:
    """Scalar parameters as they are given."""
    return tuple((f.name, repr(getattr(f.default, "value", None))) for f in function.fields)


def is_closed(function: Function) -> bool:
    """Whether all scalar parameters have values; a library may leave one to its users."""
    scalars = [f for f in function.fields if isinstance(f.type, ast.NamedType)]
    return all(f.default is not None for f in scalars)


def place(value: Value, decl: Decl) -> Span:
    """Where a setting was written, else the name of its declaration."""
    return value.origin.span or decl.name_span
