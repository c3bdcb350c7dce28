"""Tries settings before a plan advises them, so that it advises only what the compiler accepts.

Plan + {"schedule.max_policy_age": 2} --tried--> the plan with these settings, or why there is none
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Program
from forgedsl.plan.plan import Plan, plan
from forgedsl.plan.search import changed
from forgedsl.plan.sizes import data_ranks, step_tokens
from forgedsl.records import replace
from forgedsl.sizes.meshes import value
from forgedsl.types.flow import Role

SHORTER = 0.95
"""fraction of a step; advice that saves less is left out"""
AS_SHORT = 1.02
"""a step of at most this multiple of the shortest time counts as equally short"""


def tried(made: Plan, graph: Graph, settings: Mapping[str, int]) -> tuple[Plan | None, list[str]]:
    """Return the plan with other settings, and the codes of the errors that they cause."""
    request, program = made.request, made.request.program
    for path, number in settings.items():
        program = _with_setting(program, path, number)
    reporter = Reporter()
    found = plan(
        program, graph, reporter=reporter, host=request.detected, base_dir=request.base_dir
    )
    return found, [each.code for each in reporter if _is_error(each)]


def with_larger_microbatches(made: Plan, graph: Graph) -> Plan | None:
    """Return the plan with the smallest microbatches that make a step about as short as the largest
    that fit; None if that is not shorter than now. Only `batch.rows` on GPUs is changed, and only
    if the samples of a step stay the same."""
    trainer, before = graph.trainer, made.cost.step_seconds
    decl, mesh = made.request.program.services[trainer], made.mesh(trainer)
    by_tokens = value(decl, "batch.tokens") is not None
    if mesh.device != "gpu" or by_tokens or graph.having(Role.SUPERVISED):
        return None
    rows, seq_len = made.request.rows[trainer]
    needed = ceil(step_tokens(made.request, graph) / (seq_len * data_ranks(mesh)))
    most = min(made.memory.fitting_rows(trainer) or 0, needed)
    found = _with_rows(made, graph, most) if most > rows else None
    if found is None or found.cost.step_seconds >= SHORTER * before:
        return None
    enough = AS_SHORT * found.cost.step_seconds
    while (rows := 2 * rows) < most:
        smaller = _with_rows(made, graph, rows)
        if smaller is not None and smaller.cost.step_seconds <= enough:
            return smaller
    return found


def _with_rows(made: Plan, graph: Graph, rows: int) -> Plan | None:
    found, errors = tried(made, graph, {f"{graph.trainer}.batch.rows": rows})
    return None if errors else found


def _is_error(diagnostic: Diagnostic) -> bool:
    return diagnostic.severity == "error"


def _with_setting(program: Program, path: str, number: int) -> Program:
    """Return the program with a setting of its schedule, of a service, or of a declaration of an
    operation."""
    name, _, key = path.partition(".")

    def new(decl: Decl) -> Decl:
        return changed(decl, {key: number}) if decl.name == name else decl

    if name == "schedule":
        assert program.schedule is not None
        return replace(program, schedule=changed(program.schedule, {key: number}))
    return replace(
        program,
        services={each: new(decl) for each, decl in program.services.items()},
        declared={
            kind: {each: new(decl) for each, decl in group.items()}
            for kind, group in program.declared.items()
        },
    )
