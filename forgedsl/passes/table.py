"""The passes: a row each, with its function, its verifier, and the text form of its product.

    pass     product                        text form (`--print-after`)
    tokens   words of the grammar           one line each
    ast      what was written, with places  records
    hir      names and values resolved      forgedsl.irtext
    graph    nodes and edges, pruned        forgedsl.irtext
    plan     places, memory, queues, age    forgedsl.irtext
    job      the sealed job                 job.json

The parser does not use the product of `tokens`, which runs only on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forgedsl.passes.state import State
from forgedsl.passes.verify import Rules, of_ast, of_graph, of_hir, of_job, of_plan, of_tokens
from forgedsl.records import dataclass

Make = Callable[[State], Any]
"""Function of a pass: returns its product, or None after reporting why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass. `rules` are the invariants of its product; `found` returns a one-line summary of
    it."""

    name: str
    what: str
    make: Make
    rules: Rules
    text: Callable[[State], str]
    found: Callable[[State], str]
    on_demand: bool = False


def names() -> tuple[str, ...]:
    """The passes in order."""
    return tuple(p.name for p in PASSES)


# ---- what each pass does


def _tokens(state: State) -> Any:
    from forgedsl.syntax.recovering_parser import tokens

    return tokens(state.source)


def _ast(state: State) -> Any:
    from forgedsl.syntax import parse

    file = parse(state.source, state.reporter)
    return None if state.reporter.has_errors else file


def _hir(state: State) -> Any:
    from forgedsl.api import overrides_of
    from forgedsl.hir.context import Context
    from forgedsl.hir.resolve import resolve

    request, loader = state.request, state.loader
    assert state.ast is not None
    layers = overrides_of(
        request.overrides, request.set_files, Context(state.reporter), loader.sources
    )
    return resolve(
        state.ast,
        name=state.source.name,
        folder=state.folder,
        loader=loader,
        profile=request.profile,
        overrides=layers,
        host=request.host,
    )


def _graph(state: State) -> Any:
    from forgedsl.graph.dataflow import build

    assert state.hir is not None
    return build(state.hir, reporter=state.reporter)


def _plan(state: State) -> Any:
    from forgedsl.plan.plan import plan

    assert state.hir is not None
    assert state.graph is not None
    return plan(
        state.hir,
        state.graph,
        reporter=state.reporter,
        host=state.request.host,
        base_dir=state.folder,
    )


def _job(state: State) -> Any:
    from forgedsl.lower.build import lower_planned

    assert state.hir is not None
    assert state.graph is not None
    assert state.plan is not None
    return lower_planned(
        state.hir,
        state.graph,
        state.plan,
        reporter=state.reporter,
        sources=state.loader.sources,
        base_dir=state.folder,
    )


# ---- texts


def _tokens_text(state: State) -> str:
    lines = []
    for token in state.tokens or ():
        line, column = state.source.position(token.start_pos or 0)
        shown = "" if token.type == "_NL" else str(token)
        lines.append(f"{line}:{column:<4} {token.type:<10} {shown}".rstrip())
    return "\n".join(lines) + "\n"


def _records(name: str) -> Callable[[State], str]:
    def text(state: State) -> str:
        from forgedsl.irtext import print_ir

        externals = {"program": state.plan.request.program} if name == "plan" and state.plan else {}
        return print_ir(getattr(state, name), state.loader.sources, externals=externals)

    return text


def _job_text(state: State) -> str:
    assert state.job is not None
    return state.job.job.model_dump_json(indent=1) + "\n"


# ---- what was found


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _hir_found(state: State) -> str:
    assert state.hir is not None
    profile = f"profile {state.hir.profile}" if state.hir.profile else "as written"
    parts = [
        state.hir.models,
        state.hir.datasets,
        state.hir.services,
        state.hir.rewards,
        state.hir.environments,
    ]
    return f"{_plural(sum(map(len, parts)), 'declaration')}, {profile}"


def _graph_found(state: State) -> str:
    assert state.graph is not None
    return f"{_plural(len(state.graph.nodes), 'node')}, {_plural(len(state.graph.edges), 'edge')}"


def _plan_found(state: State) -> str:
    assert state.plan is not None
    age = state.plan.schedule.staleness.age_bound
    return f"{_plural(len(state.plan.meshes), 'mesh').replace('shs', 'shes')}, age <= {age}"


def _job_found(state: State) -> str:
    assert state.job is not None
    return f"job {state.job.job.content_hash[:10]}"


PASSES: tuple[Pass, ...] = (
    Pass(name="tokens", what="text to tokens", make=_tokens, rules=of_tokens, text=_tokens_text,
         found=lambda s: _plural(len(s.tokens or ()), "token"), on_demand=True),
    Pass(name="ast", what="tokens to a tree", make=_ast, rules=of_ast, text=_records("ast"),
         found=lambda s: _plural(len(s.ast.decls) if s.ast else 0, "declaration")),
    Pass(name="hir", what="names and values", make=_hir, rules=of_hir, text=_records("hir"),
         found=_hir_found),
    Pass(name="graph", what="nodes and edges", make=_graph, rules=of_graph,
         text=_records("graph"), found=_graph_found),
    Pass(name="plan", what="placement, memory, age", make=_plan, rules=of_plan,
         text=_records("plan"), found=_plan_found),
    Pass(name="job", what="generated code, hashes", make=_job, rules=of_job, text=_job_text,
         found=_job_found),
)  # fmt: skip
