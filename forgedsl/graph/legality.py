"""Checks that a flow is legal, and reports diagnostics.

`check_shape` looks at the statements (one step, a source of data); `check` at the typed nodes:
joins, weight syncs, fields of the loss. Names and arguments were checked during resolution.

Codes: F105 data-cycle, F106 dead-service, F107 no-sync, F108 sync-into-frozen, F111 loss-field,
F112 unrelated-join, F130 flow-shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgedsl import surface
from forgedsl.diagnostics import Diagnostic, Label, Reporter, Severity, error
from forgedsl.graph.fields import check_fields
from forgedsl.graph.streams import check_streams
from forgedsl.hir.judges import compares, comparing_reward, judge_of, judges
from forgedsl.ir.graph import Input, Node, Removed, Stream
from forgedsl.ir.program import (
    Decl,
    Function,
    Program,
    Ref,
    engine_of,
    is_tenant,
    model_of,
    rewards_of,
)
from forgedsl.operations.base import Role
from forgedsl.operations.registry import operation
from forgedsl.records import replace
from forgedsl.services.registry import kind_of
from forgedsl.source import Span


def _step(nodes: Iterable[Node]) -> Node:
    return next(node for node in nodes if Role.UPDATES in node.roles)


def _joins(node: Node) -> bool:
    """True if all inputs of a node must belong to the same completions. Calls of functions may take
    inputs of different samplers."""
    return Role.COMPUTES not in node.roles or Role.DECIDES in node.roles


def services_used(program: Program, nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the services that nodes use, sync to or are judged by, in order of declaration."""
    nodes = tuple(nodes)
    used = {node.target for node in nodes}
    used |= {node.settings["target"] for node in nodes if Role.TRANSFERS in node.roles}
    used |= {d.name for d in judging(program, nodes).values() if not kind_of(d.ctor).remote}
    return tuple(name for name in program.services if name in used)


def judging(program: Program, nodes: Iterable[Node]) -> dict[str, Decl]:
    """Return the judges of the scores in the flow and in evals, by reward."""
    scores = {node.target for node in nodes if Role.SCORES in node.roles}
    refs = (decl.settings["score"].value for decl in program.evals.values())
    scores |= {ref.name for ref in refs if isinstance(ref, Ref)}
    return judges(program, (r for score in scores for r in rewards_of(program, score)))


# ---- shape


def check_shape(program: Program, nodes: tuple[Node, ...], reporter: Reporter) -> bool:
    """True if there is one step and at least one source; report what is missing."""
    if not nodes:
        reporter.report(
            error(
                "F130",
                "flow-shape",
                "there is nothing to run: the file has no flow",
                Span(program.file, 0, 0),
                help="add `flow train { ... }`, which defines a step; a module without a flow "
                f"works only with `{surface.call('lint', 'p.lint()')}`, `forgec explain` and "
                "`forgec doc`",
            )
        )
        return False
    steps = [node for node in nodes if Role.UPDATES in node.roles]
    place = nodes[0].span
    if not steps:
        reporter.report(
            error(
                "F130",
                "flow-shape",
                "the flow has no training step",
                place,
                help="end it with `trainer.step(batch, loss = ...)`",
            )
        )
    for extra in steps[1:]:
        reporter.report(
            error(
                "F130",
                "flow-shape",
                "the flow has more than one step",
                extra.span,
                label="a flow can have only one optimizer step",
                related=(Label(text="the first step", span=steps[0].span),),
                help="one step takes both: `trainer.step(a, loss = x, b, loss = y)`",
            )
        )
    if not any(Role.SOURCE in node.roles for node in nodes):
        reporter.report(
            error(
                "F130",
                "flow-shape",
                "the flow draws no data",
                place,
                help="begin it with `prompt = DATASET.draw(n)` or `batch = DATASET.batches()`",
            )
        )
    return len(steps) == 1 and any(Role.SOURCE in node.roles for node in nodes)


def report_cycle(nodes: tuple[Node, ...], reporter: Reporter) -> None:
    """Report one data cycle with the statements it goes through."""
    by_name = {node.name: node for node in nodes}
    path = _find_cycle(by_name)
    first = by_name[path[0]]
    reporter.report(
        error(
            "F105",
            "data-cycle",
            f"the flow has a cycle: {' -> '.join((*path, path[0]))}",
            first.span,
            label=f"`{first.name}` needs its own result",
            related=tuple(
                Label(text=f"the cycle goes through `{name}`", span=by_name[name].span)
                for name in path[1:3]
            ),
            help="only `sync`, `observe` and a buffer can close a cycle",
        )
    )


def _find_cycle(by_name: dict[str, Node]) -> tuple[str, ...]:
    """Return the names along a cycle, each read by the next. The caller knows that there is one."""
    alive = dict(by_name)
    while True:
        ends = [n for n, node in alive.items() if not any(i.edge in alive for i in node.inputs)]
        if not ends:
            break
        for name in ends:
            del alive[name]
    walk = [next(iter(alive))]
    while True:
        before = next(i.edge for i in alive[walk[-1]].inputs if i.edge in alive)
        if before in walk:
            return tuple(reversed(walk[walk.index(before) :]))
        walk.append(before)


# ---- typed checks


def check(
    program: Program,
    nodes: tuple[Node, ...],
    reads: Mapping[str, tuple[Function, frozenset[str]]],
    reporter: Reporter,
) -> bool:
    """Run all checks on typed nodes; True if they pass. `reads` has the loss and fields of each
    batch."""
    by_name = {node.name: node for node in nodes}
    own = (operation(node.op).check(program, node, nodes, by_name) for node in nodes)
    found = [d for each in own for d in each] or check_streams(program, nodes, by_name)
    if not found:
        for node in nodes:
            found += _check_join(node, by_name)
            found += operation(node.op).check_joins(node, by_name)
        found += _check_terms(nodes, by_name)
        trainer = program.services[_step(nodes).target]
        for batch, (loss, live) in reads.items():
            node = by_name[batch]
            drawn = Role.RECALLS in by_name[node.root].roles
            from_buffer = node.inputs[0].edge if drawn else ""
            found += check_fields(node, loss, live, trainer, from_buffer)
    found += _check_minibatches(nodes)
    found += _check_scorers(program, nodes)
    found += _check_compared(program, nodes, by_name)
    syncs = [d for node in nodes for d in _check_sync(program, node, nodes)]
    found += syncs or _check_updated(program, nodes)
    for diagnostic in found:
        reporter.report(diagnostic)
    return not found


def _check_join(node: Node, by_name: dict[str, Node]) -> list[Diagnostic]:
    """Check that inputs come from one draw, and that fields belong to the sampler of their
    rollouts."""
    if len(node.inputs) < 2 or Role.UPDATES in node.roles:
        return []
    sources = [by_name[i.edge] for i in node.inputs]
    first = sources[0]
    for read, source in zip(node.inputs[1:], sources[1:], strict=True):
        if source.root != first.root:
            found = _unrelated(node, read, first, source, "they come from different draws")
            if Role.RECALLS in by_name[first.root].roles:
                name = read.attribute or read.edge
                help = f"store it with them, `{name} = {read.text}`, and read `{first.name}.{name}`"
                found = replace(found, help=help)
            return [found]
    if Role.PACKS in node.roles:
        return _check_fields_join(node, sources)
    owners = [(read, source) for read, source in zip(node.inputs, sources, strict=True)]
    sampled = [(read, source) for read, source in owners if source.samplers]
    for read, source in sampled[1:]:
        if _joins(node) and source.samplers != sampled[0][1].samplers:
            return [_unrelated(node, read, sampled[0][1], source, "different samplers")]
    return []


def _check_terms(nodes: tuple[Node, ...], by_name: dict[str, Node]) -> list[Diagnostic]:
    """Report merged batches of mixed kinds, and several losses with more than one update per
    step.
    """
    step = _step(nodes)
    found = []
    for _, batches in step.terms:
        kinds = {b.edge: _kind(by_name[b.edge], by_name) for b in batches}
        if len(batches) > 1 and (len(set(kinds.values())) > 1 or "conversations" in kinds.values()):
            listed = ", ".join(f"`{name}` has {kind}" for name, kind in kinds.items())
            help = "give each a loss of its own: `step(a, loss = x, b, loss = y)`"
            if set(kinds.values()) == {"conversations"}:
                help = (
                    "combine both sources in one dataset: `source = mixture([...], weights = "
                    "[...])`"
                )
            message = f"merged batches must all be rollouts, or all pairs: {listed}"
            found.append(error("F112", "unrelated-join", message, batches[0].span, help=help))
    updates = int(step.settings["epochs"]) * int(step.settings["minibatches"])
    if len(step.terms) > 1 and updates > 1:
        message = (
            "a step of several losses can make only one update, but `epochs` x `minibatches` is "
            f"{updates}"
        )
        help = "set `epochs = 1, minibatches = 1`, or train with one loss on `merge(a, b)`"
        found.append(error("F130", "flow-shape", message, step.span, help=help))
    return found


def _kind(batch: Node, by_name: dict[str, Node]) -> str:
    """Return the kind of items of a batch: conversations, pairs or rollouts."""
    if Role.PACKS not in batch.roles:
        return "conversations"
    return "pairs" if by_name[batch.inputs[0].edge].stream is Stream.PAIR else "rollouts"


def _check_minibatches(nodes: tuple[Node, ...]) -> list[Diagnostic]:
    """Check that the groups of a batch divide evenly among its minibatches."""
    step = _step(nodes)
    sources = [node for node in nodes if Role.SOURCE in node.roles or Role.RECALLS in node.roles]
    many, drawn = int(step.settings["minibatches"]), next(iter(sources))
    prompts = sum(int(node.settings.get("count", 0)) for node in sources)
    if many == 1 or (prompts and prompts % many == 0):
        return []
    what, help = "prompts", ""
    if prompts:
        near = sorted((d for d in range(1, prompts + 1) if prompts % d == 0),
                      key=lambda d: abs(d - many))[:2]  # fmt: skip
        help = " or ".join(f"`minibatches = {d}`" for d in sorted(near))
        what = "pairs" if drawn.stream is Stream.PAIR else "prompts"
        message = f"`minibatches = {many}` does not divide the {prompts} {what} of a batch"
    else:
        message = (
            f"`{drawn.target}.batches()` returns a batch without groups, so `minibatches` "
            "cannot divide it"
        )
        help = "use smaller batches: `batch.rows`, `batch.accumulate`"
    related = tuple(
        Label(text=f"{node.settings['count']} {what} are drawn here", span=node.span)
        for node in sources
        if prompts
    )
    return [error("F130", "flow-shape", message, step.span, related=related, help=help)]


def _check_fields_join(node: Node, sources: list[Node]) -> list[Diagnostic]:
    streams = [s for s in sources if s.stream in (Stream.ROLLOUT, Stream.PAIR)]
    samplers = frozenset[str]().union(*(s.samplers for s in streams))
    for read, source in zip(node.inputs, sources, strict=True):
        if not source.samplers <= samplers:
            return [_unrelated(node, read, sources[0], source, "different samplers")]
    return []


def _unrelated(node: Node, read: Input, first: Node, second: Node, why: str) -> Diagnostic:
    def origin(source: Node) -> str:
        apart = first.root != second.root and first.samplers == second.samplers
        return source.root if apart else ", ".join(sorted(source.samplers)) or source.root

    made = f"`{first.name}` comes from `{origin(first)}`"
    if origin(first) == first.name:
        made = f"`{first.name}` is made here, from another draw or sampler"
    return error(
        "F112",
        "unrelated-join",
        f"`{first.name}` and `{read.text}` cannot be joined: {why}",
        read.span,
        label=f"comes from `{origin(second)}`",
        related=(Label(text=made, span=first.span),),
        notes=(
            "streams are joined by (group, rollout), so they must come from the same draw and "
            "sampler",
        ),
        help=f"compute `{read.edge}` from `{first.name}`",
    )


# ---- weights


def _check_compared(
    program: Program, nodes: tuple[Node, ...], by_name: dict[str, Node]
) -> list[Diagnostic]:
    """Check that a judge that compares completions gets at least two per prompt, and is in no
    eval."""
    found = []
    for node in (node for node in nodes if Role.SCORES in node.roles):
        reward = comparing_reward(program, rewards_of(program, node.target))
        alone = [s for s in sorted(node.samplers) if int(by_name[s].settings["n"]) < 2]
        if reward and alone:
            message = (
                f"`{reward}` compares the completions of a prompt, but `{alone[0]}` samples only "
                "one per prompt"
            )
            help = "set `n = 8` there, or remove `{other}` from the judge's prompt"
            found.append(error("F112", "unrelated-join", message, node.span, help=help))
    for decl in program.evals.values():
        score = getattr(decl.settings["score"].value, "name", None)
        own = (reward for reward in rewards_of(program, score)) if score is not None else ()
        if reward := next((r for r in own if compares(judge_of(program.rewards.get(r)))), ""):
            message = (
                f"`{decl.name}` scores by `{reward}`, which compares the completions of a prompt"
            )
            help = "the completions of an eval are scored one by one: use another reward"
            found.append(error("F112", "unrelated-join", message, decl.name_span, help=help))
    return found


def _check_scorers(program: Program, nodes: tuple[Node, ...]) -> list[Diagnostic]:
    """Report F108: a reward model that is trained would score the same answer differently in every
    step."""
    step = _step(nodes)
    return [
        error("F108", "sync-into-frozen",
              f"`{service.name}` computes `{reward}`, but is itself trained, so its scores would "
              "change",
              step.span, label="trained here",
              related=(Label(text="scores", span=program.rewards[reward].span),),
              help=f"use a separate service for the reward: `{service.ctor}(value_head(MODEL))`")
        for reward, service in judging(program, nodes).items() if service.name == step.target
    ]  # fmt: skip


def _check_sync(program: Program, node: Node, nodes: tuple[Node, ...]) -> list[Diagnostic]:
    if Role.TRANSFERS not in node.roles:
        return []
    source, target = node.target, node.settings["target"]
    step = _step(nodes)
    problem = help = ""
    if source != step.target:
        problem = f"`{source}` is not trained, so its weights do not change"
        help = f"sync from `{step.target}`"
    elif not kind_of(program.services[target].ctor).samples:
        problem = f"`{target}` is a {program.services[target].ctor} service, which is frozen"
        help = "sync into a generator (a vllm service)"
    elif reward := next((r for r, d in judging(program, nodes).items() if d.name == target), ""):
        problem = (
            f"`{target}` is the judge of `{reward}`, so its grades would change with the policy"
        )
        model = model_of(program.services[source])
        help = f"use a separate service as judge: `service judge : vllm({model})`"
    elif is_tenant(program, target):
        engine = engine_of(program, target)
        problem = f"`{target}` never changes: the engine of `{engine}` serves it"
        help = f"remove the sync, or `served_by` of `{target}`"
    elif model_of(program.services[source]) != model_of(program.services[target]):
        ours, theirs = (model_of(program.services[name]) for name in (source, target))
        problem = f"`{source}` trains model `{ours}`, but `{target}` serves model `{theirs}`"
        help = f"build `{target}` on `{ours}`"
    if not problem:
        return []
    declared = program.spans.get(target)
    related = (Label(text=f"`{target}` is declared here", span=declared),) if declared else ()
    return [error("F108", "sync-into-frozen", problem, node.span, related=related, help=help)]


def _check_updated(program: Program, nodes: tuple[Node, ...]) -> list[Diagnostic]:
    """Report F107: a generator of the trained model without a sync samples from the initial
    weights."""
    step = _step(nodes)
    trained = model_of(program.services[step.target])
    synced = {node.settings["target"] for node in nodes if Role.TRANSFERS in node.roles}
    return [
        error(
            "F107",
            "no-sync",
            f"`{node.target}` samples model `{trained}`, which is trained, but its weights are "
            "never updated",
            node.span,
            related=(Label(text=f"`{step.target}` trains that model", span=step.span),),
            help=f"add `sync {step.target} -> {node.target} {{ every = 1 }}`",
        )
        for node in nodes
        if Role.SAMPLES in node.roles
        and model_of(program.services[node.target]) == trained
        and node.target not in synced
        and not is_tenant(program, node.target)  # it says that it answers with the base
    ]


# ---- parts removed by folding


def report_removed(
    program: Program, part: Removed, nodes: tuple[Node, ...], reporter: Reporter
) -> None:
    """Report F106: what was removed, why, and which processes that frees."""
    step = _step(nodes)
    services = ", ".join(f"`{name}`" for name in part.services)
    gone = ", ".join(f"`{name}`" for name in part.nodes)
    if part.services:
        message = f"{services} is not needed: {part.reason}"
        span = program.spans.get(part.services[0], step.span)
    elif part.nodes:
        message = f"{gone} is not computed: {part.reason}"
        span = next(node.span for node in nodes if node.name == part.nodes[-1])
    else:
        message = f"{part.reason}, so it is left out of the batch"
        span = step.span
    notes = (f"removed from the flow: {gone}",) if part.nodes and part.services else ()
    reporter.report(
        Diagnostic(
            code="F106",
            name="dead-service",
            severity=Severity.INFO,
            message=message,
            span=span,
            notes=notes,
        )
    )
