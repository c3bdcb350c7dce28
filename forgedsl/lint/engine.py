"""Lint: checks a file as written and under each profile.

    text --parse--> AST --resolve (per view)--> Program --rules, losses, graph, plan--> findings

A view is the file as written or under one profile. Rules run only on views that resolve without
errors, so that one mistake gives one message. A finding of several views is reported once, with the
names of the profiles unless the file as written has it too. The host is examined only with --deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forgedsl.diagnostics import Diagnostic, Reporter, Severity
from forgedsl.hir.context import ERROR, Context
from forgedsl.hir.modules import Loader
from forgedsl.hir.overlay import Override
from forgedsl.hir.resolve import is_module, resolve
from forgedsl.ir.program import Program
from forgedsl.lint.config import DEFAULT, Config
from forgedsl.lint.registry import finding_of, rules_for
from forgedsl.lint.suppress import suppress
from forgedsl.lint.view import Shared, View
from forgedsl.lint.worker import Answer, Task, Worker
from forgedsl.records import dataclass, field, replace
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, parse, read_source

if TYPE_CHECKING:
    from forgedsl.ir.graph import Graph
    from forgedsl.lint.deep import DataChecks, MakeCalls
    from forgedsl.lint.facts import Facts
    from forgedsl.plan.plan import Plan

AS_WRITTEN = "none"
HERE = "this host"
"""name of the view that --deep adds"""
READ_THE_FLOW = ("F104", "A303")
"""rules that need a legal flow"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deep:
    """Inputs of --deep besides the text: this host, a function that checks data and rewards, and
    one that calls rewards with constructed answers."""

    host: Host
    outside: DataChecks
    calls: MakeCalls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What an editor has besides the text: unsaved `texts` by real path, the `tree` of the text if
    it has no mistakes, and a cache of `facts` of losses by structure, which lint fills."""

    texts: Mapping[str, str] = field(default_factory=dict)
    tree: ast.File | None = None
    facts: dict[tuple[object, ...], Facts] = field(default_factory=dict)
    worker: Worker | None = None
    """a second process, which checks half of the profiles"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """Findings in the order of the file, and the texts they refer to."""

    diagnostics: tuple[Diagnostic, ...]
    sources: dict[str, SourceFile]
    data_reports: tuple[str, ...] = ()
    """reports of --deep on the data that it read"""


def lint_file(
    path: Path,
    *,
    profile: str | None = None,
    overrides: Iterable[str] = (),
    set_files: Iterable[str | Path] = (),
    config: Config = DEFAULT,
    deep: Deep | None = None,
    host: Host | None = None,
) -> Linted:
    """Check the file at `path`. `profile` restricts the check to one view, `deep` adds checks of
    this host and of the files and models referred to, `host` is the host to plan for."""
    reporter = Reporter()
    source = read_source(path, str(path), reporter)
    if source is None:
        return Linted(diagnostics=tuple(reporter), sources={str(path): SourceFile(str(path), "")})
    return lint_source(
        source,
        path.parent,
        profile=profile,
        overrides=overrides,
        set_files=set_files,
        config=config.for_file(path),
        deep=deep,
        on_disk=True,
        host=host,
    )


def lint_source(
    source: SourceFile,
    folder: Path | None,
    *,
    profile: str | None = None,
    overrides: Iterable[str] = (),
    set_files: Iterable[str | Path] = (),
    config: Config = DEFAULT,
    deep: Deep | None = None,
    on_disk: bool = False,
    host: Host | None = None,
    held: Held | None = None,
) -> Linted:
    """Check a text; imports are relative to `folder`. `on_disk`: data may be looked up there."""
    reporter, held = Reporter(), held or Held()
    sources = {source.name: source}
    file = held.tree or parse(source, reporter)
    if reporter.has_errors:
        return Linted(diagnostics=_ordered(reporter), sources=sources)
    layered = _layered([*overrides], [*set_files], reporter, sources)
    shared = Shared(on_disk=on_disk or deep is not None, facts=held.facts)
    checks = _Checks(
        source=source, folder=folder, file=file, layered=layered,
        loader=Loader(reporter, sources, texts=held.texts), runs=cache(config.runs), shared=shared,
    )  # fmt: skip
    if profile is None:
        started = _start(held.worker, checks, config)
        profiles = _check_views(checks, started, deep, host)
    else:
        checks.check(profile, deep, host)
        profiles = _profiles((file, *(module.file for module in checks.loader.modules.values())))
    if deep is not None and profile is None and not is_module(file):
        _check_host(file, source.name, folder, layered, checks.loader_of(HERE), deep.host)
    asked = profile if profiles else None
    # a suppressed finding may occur under a profile that is not checked, or without overrides
    whole = not layered and asked is None
    for view in _compared(checks.views, asked, profiles):
        checks.check(view, None, host)
    found_in = _merge(checks.views, asked)
    merged = suppress((*reporter, *found_in), sources, checks.runs if whole else None)
    shown = _gathered([*merged], folder)
    found = _ordered(d for d in map(config.applied, shown) if d is not None)
    return Linted(diagnostics=found, sources=sources, data_reports=_data_reports(shared))


@dataclass(slots=True, kw_only=True)
class _Checks:
    """The checks of the views of one text. `views` has the findings of each view so far."""

    source: SourceFile
    folder: Path | None
    file: ast.File
    layered: tuple[Override, ...]
    loader: Loader
    runs: Callable[[str], bool]
    shared: Shared
    views: dict[str, Reporter] = field(default_factory=dict)

    def loader_of(self, view: str) -> Loader:
        """Return the loader of a view, which reports to the view."""
        self.views[view] = Reporter()
        return replace(self.loader, reporter=self.views[view])

    def check(self, view: str, deep: Deep | None = None, host: Host | None = None) -> None:
        """Check a view."""
        loader, name = self.loader_of(view), self.source.name
        program = _resolved(self.file, name, self.folder, self.layered, loader, view, host)
        if program is not None:
            reporter, sources = self.views[view], self.loader.sources
            found = View(
                program, reporter, file=self.file, folder=self.folder, sources=sources,
                shared=self.shared,
            )  # fmt: skip
            _check(found, reporter, self.runs, deep, host)

    def add(self, answer: Answer) -> None:
        """Add the views that a second process has checked."""
        for view, found in answer.findings.items():
            self.views[view] = Reporter()
            for diagnostic in found:
                self.views[view].report(diagnostic)
        for name, text in answer.texts.items():
            self.loader.sources.setdefault(name, SourceFile(name, text))


FEWEST = 3
"""minimum number of profiles for which a second process saves time"""


class _Started(NamedTuple):
    """Views that a second process checks, and the function that waits for its answer."""

    views: tuple[str, ...]
    answer: Callable[[], Answer | None]


def _start(worker: Worker | None, checks: _Checks, config: Config) -> _Started | None:
    """Let a second process check half of the profiles of the file; None if there is no process, if
    there are overrides, or if the file has few profiles."""
    profiles = _profiles((checks.file,))
    if worker is None or checks.layered or len(profiles) < FEWEST:
        return None
    views, texts = profiles[-(len(profiles) // 2) :], dict(checks.loader.texts)
    answer = worker.start(
        Task(source=checks.source, folder=checks.folder, config=config, texts=texts, views=views)
    )
    return None if answer is None else _Started(views, answer)


def _check_views(
    checks: _Checks, started: _Started | None, deep: Deep | None, host: Host | None
) -> tuple[str, ...]:
    """Check the file as written and under each profile; return the names of the profiles. Views
    that a second process has not answered are checked here."""
    checks.check(AS_WRITTEN, deep, host)
    profiles = _profiles((checks.file, *(m.file for m in checks.loader.modules.values())))
    for name in profiles:
        if started is None or name not in started.views:
            checks.check(name, deep, host)
    answer = None if started is None else started.answer()
    if answer is not None:
        checks.add(answer)
    for name in profiles:
        if name not in checks.views:
            checks.check(name, deep, host)
    checks.views = {name: checks.views[name] for name in (AS_WRITTEN, *profiles)}
    return profiles


def check_views(task: Task, facts: dict[tuple[object, ...], Facts]) -> Answer:
    """Check some views of a text whose syntax has no mistakes: what a second process does."""
    sources = {task.source.name: task.source}
    loader = Loader(Reporter(), sources, texts=task.texts)
    checks = _Checks(
        source=task.source, folder=task.folder, file=parse(task.source, loader.reporter),
        layered=(), loader=loader, runs=cache(task.config.runs),
        shared=Shared(on_disk=True, facts=facts),
    )  # fmt: skip
    for view in task.views:
        checks.check(view)
    return Answer(
        findings={view: (*reporter,) for view, reporter in checks.views.items()},
        texts={name: each.text for name, each in sources.items() if name != task.source.name},
    )


def _gathered(found: list[Diagnostic], folder: Path | None) -> Iterable[Diagnostic]:
    """Make one finding of missing files in one missing folder."""
    if folder is None or not any(each.code == "P210" for each in found):
        return found
    from forgedsl.lower.missing import gather

    return gather(found, folder)


def _layered(
    overrides: list[str],
    set_files: list[str | Path],
    reporter: Reporter,
    sources: dict[str, SourceFile],
) -> tuple[Override, ...]:
    """Parse the overrides, in the order they apply."""
    if not overrides and not set_files:
        return ()
    from forgedsl.api import overrides_of

    return overrides_of(overrides, set_files, Context(reporter), sources)


def _compared(
    views: dict[str, Reporter], asked: str | None, profiles: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the other views to check. Some findings count only if every view has them: if the view
    that was asked for has such a finding, all other views are checked, else none."""
    if asked is None or not any(_is_everywhere(d.code) for d in views[asked]):
        return ()
    return tuple(view for view in (AS_WRITTEN, *profiles) if view != asked)


def _data_reports(shared: Shared) -> tuple[str, ...]:
    """Return the reports of --deep, with profiles unless the file as written has the same
    report."""
    return tuple(
        text if "" in profiles else f"{text} (profile {', '.join(profiles)})"
        for text, profiles in shared.data_reports.items()
    )


def _resolved(
    file: ast.File,
    name: str,
    folder: Path | None,
    overrides: tuple[Override, ...],
    loader: Loader,
    view: str,
    host: Host | None,
) -> Program | None:
    """Resolve a view; None if rules cannot check it: it has errors, or parameters without value. A
    module with such parameters is checked where it is imported."""
    program = resolve(
        file,
        name=name,
        folder=folder,
        loader=loader,
        profile=view,
        overrides=overrides,
        allow_missing_params=True,
        host=host,
    )
    if program is None or loader.reporter.has_errors:
        return None
    return program if all(v.value is not ERROR for v in program.params.values()) else None


def _profiles(files: Iterable[ast.File]) -> tuple[str, ...]:
    """Return the names of the profiles of a file and of the modules that it imports."""
    names = [
        decl.name
        for file in files
        for decl in file.decls
        if isinstance(decl, ast.BlockDecl) and decl.kind == "profile" and decl.name
    ]
    return tuple(dict.fromkeys(names))


def _check(
    view: View,
    reporter: Reporter,
    runs: Callable[[str], bool],
    deep: Deep | None,
    host: Host | None,
) -> None:
    """Run the rules, and the checks of later stages if all losses are sound."""
    legal, planned = True, None
    if not reporter.has_errors and not is_module(view.file):
        live = {n: frozenset(f.name for f in v.tree.fields) for n, v in view.located.items()}
        graph, made = _plan(view.program, view.folder, reporter, host, live=live)
        legal = graph is not None
        planned = (graph, made) if graph is not None and made is not None else None
    view.planned = planned
    if legal and not reporter.has_errors:
        _check_bodies(view, reporter)
    # set before the rules run: their errors may be suppressed
    sound = None if reporter.has_errors else planned
    for rule in rules_for(view.program, runs):
        if rule.finding.code in READ_THE_FLOW and not legal:
            continue  # in an illegal flow, what reads a declaration may be missing
        for diagnostic in rule.check(view):
            reporter.report(diagnostic)
    if deep is not None:
        from forgedsl.lint.deep import check as look_outside

        for diagnostic in look_outside(view, sound, deep.outside, deep.calls, runs):
            reporter.report(diagnostic)


def _check_bodies(view: View, reporter: Reporter) -> None:
    """Emit the bodies of rewards, rubrics and columns, which reports mistakes in their dtypes."""
    from forgedsl.emit.python import ProgramWriter

    ProgramWriter(view.program, {}, reporter).bodies(sound=view.located)


def _check_host(
    file: ast.File,
    name: str,
    folder: Path | None,
    overrides: tuple[Override, ...],
    loader: Loader,
    host: Host,
) -> None:
    """Plan for this host, under the profile that it selects."""
    program = resolve(file, name=name, folder=folder, loader=loader, overrides=overrides, host=host)
    if program is not None and program.flow and not loader.reporter.has_errors:
        _plan(program, folder, loader.reporter, host)


def _plan(
    program: Program,
    folder: Path | None,
    reporter: Reporter,
    host: Host | None = None,
    live: Mapping[str, frozenset[str]] | None = None,
) -> tuple[Graph | None, Plan | None]:
    """Run the checks of graph and plan; return the graph if it is legal, and the plan."""
    from forgedsl.graph.dataflow import build
    from forgedsl.plan.cost import check_bottleneck
    from forgedsl.plan.plan import plan

    made, graph = None, build(program, reporter=reporter, live=live)
    if graph is not None:
        made = plan(program, graph, reporter=reporter, host=host, base_dir=folder)
        for diagnostic in check_bottleneck(program, made.cost) if made is not None else ():
            reporter.report(diagnostic)
    return graph, made


def _is_everywhere(code: str) -> bool:
    """True for a rule whose findings count only if all views have them."""
    found = finding_of(code)
    return found is not None and found.everywhere


def _merge(views: dict[str, Reporter], asked: str | None) -> Iterator[Diagnostic]:
    """Yield the findings of all views, or of the view that was `asked` for, equal ones once."""
    found: dict[Diagnostic, list[str]] = {}
    for view, reporter in views.items():
        for diagnostic in reporter:
            found.setdefault(diagnostic, []).append(view)
    for diagnostic, names in found.items():
        if asked is not None and asked not in names:
            continue
        if _is_everywhere(diagnostic.code):
            if len({*names} - {HERE}) == len(views.keys() - {HERE}):
                yield diagnostic
        elif asked is not None or AS_WRITTEN in names or len(views) == 1:
            yield diagnostic
        else:
            yield replace(diagnostic, profiles=tuple(names))


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def _ordered(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(
        sorted(diagnostics, key=lambda d: (d.span.file, d.span.start, _ORDER[d.severity], d.code))
    )
