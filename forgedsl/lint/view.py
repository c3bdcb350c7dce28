"""View of a resolved program for rules, with losses, advantages and filters as typed trees.

    Program  ->  View: losses (LossView), groups (advantages and filters), facts of the flow

Trees are inferred once per view and shared by all rules; everything derived from them is computed
when a rule first asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.ir.program import Constant, Decl, EnvironmentDecl, FlowStep, Function, Program, Value
from forgedsl.lint.facts import Facts, structure
from forgedsl.lint.losses import LossView
from forgedsl.losses.intervals import Analysis
from forgedsl.losses.source_spans import Located, locate
from forgedsl.records import dataclass, replace
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names
from forgedsl.types.flow import Role
from forgedsl.types.intervals import INF, Interval, interval, point

if TYPE_CHECKING:
    from forgedsl.ir.graph import Graph
    from forgedsl.lint.call_results import CallResults
    from forgedsl.plan.plan import Plan


class Shared:
    """Caches shared by all views of a file. Trees of functions are cached by the values that they
    read, facts of losses by structure. `on_disk`: True if rules may read the program's files in its
    folder. `facts` has the facts of earlier versions of the text, in an editor."""

    def __init__(self, *, on_disk: bool, facts: dict[tuple[object, ...], Facts]) -> None:
        self.on_disk = on_disk
        self.data_reports: dict[str, list[str]] = {}
        """reports of --deep on data that it read, each with its profiles"""
        self.trees: dict[tuple[object, ...], tuple[Located | None, tuple[Diagnostic, ...]]] = {}
        self.answers: dict[object, Any] = {}
        """results that rules cache for all views, by question"""
        self._names: dict[tuple[str, int, str], tuple[tuple[str, ...], ...]] = {}
        self._intervals: dict[tuple[Located, Interval], Analysis] = {}
        self._facts = facts
        self._facts_of: dict[Located, Facts] = {}

    def names(self, function: Function) -> tuple[tuple[str, ...], ...]:
        """Return the dotted names in the body of a function."""
        span = function.span  # each view has its own statements, but all have the same text
        key = (span.file, span.start, function.name)
        if key not in self._names:
            self._names[key] = tuple(dict.fromkeys(names(function.statements)))
        return self._names[key]

    def intervals(self, located: Located, group_size: Interval) -> Analysis:
        """Return the intervals of an advantage or a filter."""
        key = (located, group_size)
        if key not in self._intervals:
            tree = located.tree
            outputs = [value for _, value in tree.outputs]
            self._intervals[key] = Analysis(tree.values, outputs, group_size=group_size)
        return self._intervals[key]

    def facts(self, located: Located) -> Facts:
        """Return the facts of a loss."""
        found = self._facts_of.get(located)
        if found is None:
            key = structure(located.tree)
            if key not in self._facts:
                self._facts[key] = Facts(located.tree)
            found = self._facts_of[located] = self._facts[key]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """An advantage or a filter as a tree, with its intervals."""

    function: Function
    located: Located
    analysis: Analysis


class View:
    """A program under one profile. `file` is its syntax tree, `folder` its folder."""

    def __init__(
        self,
        program: Program,
        reporter: Reporter,
        *,
        file: ast.File,
        folder: Path | None,
        sources: dict[str, SourceFile],
        shared: Shared,
    ) -> None:
        self.program = program
        self.file = file
        self.folder = folder
        self.sources = sources
        self.shared = shared
        self.planned: tuple[Graph, Plan] | None = None
        """its graph and plan, if it has no mistakes"""
        self.calls: CallResults | None = None
        """what rewards and environments gave when --deep called them"""
        self.answers: dict[object, Any] = {}
        """results that rules cache for this view, by question"""
        self._identities: dict[int, tuple[object, ...]] = {}
        self.located: dict[str, Located] = {}
        for name, function in program.functions.items():
            if function.kind == "fn" or not is_closed(function):
                continue
            if function.module == "" or name in self._used:
                is_standard = function.module.startswith("std/")
                found = self._locate(function, Reporter() if is_standard else reporter)
                if found is not None and not found.tree.is_python:
                    self.located[name] = found

    def _locate(self, function: Function, reporter: Reporter) -> Located | None:
        """Return the tree of a function; shared with another view if all values it reads are
        equal."""
        trees = self.shared.trees
        key = self.identity(function)
        if key not in trees:
            problems = Reporter()
            trees[key] = locate(function, problems), tuple(problems)
        located, diagnostics = trees[key]
        for diagnostic in diagnostics:
            reporter.report(diagnostic)
        return located

    def called_tree(self, step: FlowStep) -> Located | None:
        """Return the tree of the advantage or filter that a statement calls, with the numbers that
        it gives; None if it has mistakes."""
        function = self.program.functions[step.receiver]
        numbers = {
            field.name: step.settings[field.name].value
            for field in function.fields
            if field.name in step.settings
            and isinstance(step.settings[field.name].value, int | float)
        }
        if not numbers:
            return self.located.get(step.receiver)
        key = (View.called_tree, step.receiver, *numbers.items())
        if key in self.answers:
            found: Located | None = self.answers[key]
            return found
        fields = tuple(
            replace(f, default=ast.Number(value=n, text=f"{n:g}", span=f.span))
            if (n := numbers.get(f.name)) is not None
            else f
            for f in function.fields
        )
        given = replace(function, fields=fields)
        located = locate(given, Reporter()) if is_closed(given) else None
        self.answers[key] = located
        return located

    def identity(self, function: Function) -> tuple[object, ...]:
        """Return what a function is made of: its text and the values that it reads. Equal functions
        of two views compute the same."""
        if id(function) not in self._identities:
            self._identities[id(function)] = (function.name, function.span, *self._reads(function))
        return self._identities[id(function)]

    def _reads(self, function: Function) -> Iterator[object]:
        """Yield the values of all names that a function reads, directly or through others."""
        seen: set[int] = set()
        pending = [function]
        while pending:
            current = pending.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            defaults = tuple(f.default for f in current.fields if f.default is not None)
            yield from (repr(getattr(default, "value", None)) for default in defaults)
            for parts in (*names(defaults), *self.shared.names(current)):
                found = current.scope.lookup(parts)
                if isinstance(found, Constant):
                    yield parts
                    yield repr(found.value)
                elif isinstance(found, Function):
                    pending.append(found)

    @cached_property
    def _used(self) -> frozenset[str]:
        """The names of functions that the flow calls or minimizes."""
        calls = {
            step.receiver for step in self.program.flow if step.roles & {Role.COMPUTES, Role.DROPS}
        }
        return frozenset(calls | {loss.value.name for step in self.steps for loss, _ in step.terms})

    @cached_property
    def steps(self) -> tuple[FlowStep, ...]:
        return tuple(step for step in self.program.flow if Role.UPDATES in step.roles)

    @cached_property
    def losses(self) -> tuple[LossView, ...]:
        """The losses of the file and those that the flow minimizes."""
        found = []
        for name, located in self.located.items():
            if located.tree.kind != "loss":
                continue
            terms = ((step, *term) for step in self.steps for term in step.terms)
            step, named, reads = next(
                (term for term in terms if term[1].value.name == name), (None, None, ())
            )
            function = self.program.functions[name]
            facts = self.shared.facts(located)
            found.append(LossView(self.program, function, located, facts, step, named, reads))
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[GroupView, ...]:
        """Advantages and filters."""
        return tuple(
            GroupView(
                function=self.program.functions[name],
                located=located,
                analysis=self.shared.intervals(located, self.group_size),
            )
            for name, located in self.located.items()
            if located.tree.kind in ("advantage", "filter")
        )

    @cached_property
    def group_size(self) -> Interval:
        """Interval of the completions per prompt in the flow; two or more if unknown."""
        sizes = {
            step.settings["n"].value for step in self.program.flow if Role.SAMPLES in step.roles
        }
        return point(float(sizes.pop())) if len(sizes) == 1 else Interval(2.0, INF, nonzero=True)

    def samplers(self) -> Iterator[Decl]:
        """Yield the services from which the flow samples."""
        names = dict.fromkeys(s.receiver for s in self.program.flow if Role.SAMPLES in s.roles)
        for name in names:
            yield self.program.services[name]

    @property
    def stale_span(self) -> Span | None:
        """Span of the reason why rollouts can be older than the trained weights: the schedule, or a
        sync less often than every step; None if they cannot. Rollouts of a frozen model do not
        age."""
        schedule = self.program.schedule
        sampling = {service.name for service in self.samplers()}
        syncs = [s for s in self.program.flow if Role.TRANSFERS in s.roles]
        syncs = [s for s in syncs if s.settings["target"].value.name in sampling]
        models = {service.ctor_args[0].name for service in self.samplers()}
        if schedule is None or (sampling and not syncs and self.trained.isdisjoint(models)):
            return None
        if schedule.label != "async":
            rare = [s.settings["every"] for s in syncs if s.settings["every"].value > 1]
            return (rare[0].origin.span or schedule.name_span) if rare else None
        age = schedule.settings["max_policy_age"].value
        return schedule.name_span if sampling and age != 0 else None

    @cached_property
    def trained(self) -> frozenset[str]:
        """The names of the models that the flow trains."""
        return frozenset(self.program.services[s.receiver].ctor_args[0].name for s in self.steps)

    def trained_samplers(self) -> Iterator[Decl]:
        """Yield the samplers of trained models, and those whose log-probs a loss reads. Other
        samplers are frozen teachers, whose completions are data."""
        compares = any("behavior" in loss.read for loss in self.losses if loss.step is not None)
        for service in self.samplers():
            if compares or service.ctor_args[0].name in self.trained:
                yield service

    @cached_property
    def turns(self) -> Interval:
        """Interval of the number of turns of a rollout."""
        plays = [step.settings for step in self.program.flow if "env" in step.settings]
        most = [s["max_turns"].value if "max_turns" in s else INF for s in plays]
        return interval(1.0, float(max(most, default=1)))

    @cached_property
    def max_tokens(self) -> int | None:
        """The maximum completion length in tokens of the flow's sampler."""
        found = [s.settings["sampling.max_tokens"].value for s in self.samplers()]
        numbers = [n for n in found if isinstance(n, int)]
        return max(numbers, default=None)


def is_closed(function: Function) -> bool:
    """True if all scalar parameters have values; functions of a library may leave some to the
    user."""
    scalars = [f for f in function.fields if isinstance(f.type, ast.NamedType)]
    return all(f.default is not None for f in scalars)


def place(value: Value, decl: Decl | EnvironmentDecl) -> Span:
    """Return the span of a setting, else of the name of its declaration."""
    return value.origin.span or decl.name_span
