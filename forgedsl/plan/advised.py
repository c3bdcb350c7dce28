"""Tries settings before a plan advises them, so that it advises only what the compiler accepts.

Plan + {"schedule.max_policy_age": 2} --tried--> the plan with these settings, or why there is none
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Program
from forgedsl.plan.plan import Plan, plan
from forgedsl.plan.search import changed
from forgedsl.records import replace


def tried(made: Plan, graph: Graph, settings: Mapping[str, int]) -> tuple[Plan | None, list[str]]:
    """Return the plan with other settings, and the codes of the errors that they cause."""
    request, program = made.request, made.request.program
    for path, value in settings.items():
        program = _with_setting(program, path, value)
    reporter = Reporter()
    found = plan(
        program, graph, reporter=reporter, host=request.detected, base_dir=request.base_dir
    )
    return found, [each.code for each in reporter if _is_error(each)]


def _is_error(diagnostic: Diagnostic) -> bool:
    return diagnostic.severity == "error"


def _with_setting(program: Program, path: str, value: int) -> Program:
    """Return the program with a setting of its schedule, of a service, or of a declaration of an
    operation."""
    name, _, key = path.partition(".")

    def new(decl: Decl) -> Decl:
        return changed(decl, {key: value}) if decl.name == name else decl

    if name == "schedule":
        assert program.schedule is not None
        return replace(program, schedule=changed(program.schedule, {key: value}))
    return replace(
        program,
        services={each: new(decl) for each, decl in program.services.items()},
        declared={
            kind: {each: new(decl) for each, decl in group.items()}
            for kind, group in program.declared.items()
        },
    )
