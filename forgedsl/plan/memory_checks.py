"""P205 memory and P211 kv-starved: reports memory that is too small, with numbers and remedies.

    Request + MemoryPlan -> diagnostics

Above 100 % of a memory there is an error, above 92 % a warning. A remedy is suggested only after
planning with it has shown that it fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.ir.program import Decl, EnvironmentDecl, model_of
from forgedsl.operations.registry import declarations
from forgedsl.plan.capacity import TIGHT, MemoryPlan, Store, plan_memory, starved
from forgedsl.plan.host import host_text
from forgedsl.plan.tenants import served_by_trainer
from forgedsl.services.registry import kind_of
from forgedsl.sizes.hosts import ASSUMED
from forgedsl.sizes.memory import GIB, Item, Phase, Pool, RankMemory, Request
from forgedsl.sizes.meshes import setting_label, written_at
from forgedsl.source import Span

LONG = 16
"""if rows are this many times longer than fits, their length is reported as the cause"""


def check_memory(request: Request, plan: MemoryPlan) -> list[Diagnostic]:
    """Report P205 for every memory that is too small or tight, and for engines whose KV pool is too
    small."""
    found = [_store(request, plan, store) for store in plan.stores if store.share >= TIGHT]
    names = [rank.service for rank in plan.ranks]
    crowded = {name for store in plan.stores if store.share > 1 for name in store.services}
    for rank in starved(plan.ranks, names):
        if rank.service not in crowded and rank.pool is not None:
            found.append(_no_pool(request, rank, rank.pool))
    return found


def _store(request: Request, plan: MemoryPlan, store: Store) -> Diagnostic:
    services = request.program.services
    largest = max(
        (name for name in store.parts if name in services), key=lambda name: store.parts[name]
    )
    decl = services[largest]
    size, has = _gib(store.bytes), _gib(store.capacity)
    who = " and ".join(f"`{name}`" for name in store.services)
    if store.kind == "gpu":
        verb = "needs" if len(store.services) == 1 else "together need"
        message = f"{who} {verb} {size} on a GPU that has {has}"
        place = _place(request, largest)
    else:
        message = f"the processes of one host need {size}, but the {store.name} is {has}"
        place = ""
    span = _span(decl, rows=bool(plan.fitting_rows(largest)))
    remedies = tuple(_remedies(request, plan, store, largest))
    if shorter := _shorter(plan, store, largest):
        span = written_at(decl, "batch.seq_len")
        remedies = (shorter,)
    most = max(store.parts, key=lambda name: store.parts[name])
    program = request.program
    owned = [(each.fewer, program.declared[kind]) for kind, each in declarations().items()]
    more: list[tuple[str, Mapping[str, Decl | EnvironmentDecl]]]
    more = [*owned, ("procs", program.environments)]
    for key, decls in more:
        if most in decls:
            setting = decls[most].settings[key]
            span = setting.origin.span or decls[most].name_span
            remedies = (_fewer(store, f"{most}.{key}", setting.value, store.parts[most]),)
    over = store.share > 1
    if not over:
        message = f"{message}: {100 * store.share:.0f} % of it"
    return Diagnostic(
        code="P205",
        name="memory",
        severity=Severity.ERROR if over else Severity.WARNING,
        message=message,
        span=span,
        label=place,
        related=tuple(
            Label(text=f"`{name}` is here too", span=services[name].name_span)
            for name in store.services
            if name != largest
        )[:2],
        notes=(*_notes(plan, store), *_assumed(request, store)),
        help="; ".join(remedies),
    )


def _shorter(plan: MemoryPlan, store: Store, name: str) -> str:
    """Suggest a row length that fits, if a single row is too long and takes most of a memory."""
    rank = plan.rank(name)
    if (
        rank is None
        or not rank.rows
        or plan.fitting_rows(name) != 0
        or store.parts[name] < 0.5 * store.bytes
    ):
        return ""
    length = plan.fitting_seq_len(name)
    if not 0 < length <= plan.request.rows[name][1] // LONG:
        return ""
    return f"`{name}.batch.seq_len = {length}` fits, with `batch.rows = 1`"


def _fewer(store: Store, setting: str, count: int, size: int) -> str:
    """Suggest fewer groups of a buffer, or fewer processes of an environment, so that the rest
    fits."""
    room = 0.9 * store.capacity - (store.bytes - size)
    fitting = int(count * room / size)
    name = setting.partition(".")[0]
    return (
        f"`{setting} = {fitting}` fits"
        if fitting > 0
        else (f"there is no memory left for `{name}`")
    )


def _span(decl: Decl, *, rows: bool = False) -> Span:
    """Return the span of the setting to change: the microbatch if a smaller one fits, else the
    setting with the service's share of GPU memory, else the declaration."""
    for key in (*(("batch.rows", "batch.tokens") if rows else ()), kind_of(decl.ctor).claim):
        if key in decl.settings:
            for label in setting_label(decl, key):
                return label.span
    return decl.name_span


def _place(request: Request, service: str) -> str:
    """Describe a memory: "host 0, GPUs 0-3"."""
    place = request.mesh(service).places[0]
    gpus = f"GPU {place.gpus[0]}" if len(place.gpus) == 1 else (
        f"GPUs {place.gpus[0]}-{place.gpus[-1]}"
    )  # fmt: skip
    return f"host {place.host}, {gpus}"


def _notes(plan: MemoryPlan, store: Store) -> Iterator[str]:
    """Return the table of the fullest phase: services, each with its items."""
    yield f"peak in phase {store.phase}, in GiB:" if store.kind == "gpu" else "GiB:"
    for name, size in sorted(store.parts.items(), key=lambda part: -part[1]):
        yield f"{size / GIB:8.1f}  {name}"
        rank = plan.rank(name)
        if rank is None or store.kind == "host":
            continue
        phase = next(p for p in rank.phases if p.name == store.phase)
        yield from (f"  {item.bytes / GIB:8.1f}  {item.name}: {item.formula}"
                    for item in _largest(phase))  # fmt: skip


def _assumed(request: Request, store: Store) -> Iterator[str]:
    """Say that nobody described the host whose memory is full."""
    if store.kind == "host" and request.host.said == ASSUMED:
        yield (
            f"{host_text(request.host)}: nobody described the host; `forgec lint --deep` and "
            "`forgec plan` use the one they run on"
        )


def _largest(phase: Phase) -> list[Item]:
    items = sorted(phase.items, key=lambda item: -item.bytes)
    return [item for item in items if item.bytes >= 0.02 * phase.bytes][:6]


def _remedies(request: Request, plan: MemoryPlan, store: Store, largest: str) -> Iterator[str]:
    """Yield changes that fit; each was tried."""
    yield from _served_references(request, store)
    smaller = tuple(_engine_remedy(request, plan, store)) if store.kind == "gpu" else ()
    yield from smaller
    for name in store.services if not smaller else ():
        rank = plan.rank(name)
        rows = plan.fitting_rows(name) or 0
        if rank is None or not rank.rows:
            continue
        if 0 < rows < rank.rows:
            yield f"`{name}.batch.rows = {rows}` fits"
        elif rank.trained and store.kind == "gpu":
            available = TIGHT * store.capacity - (store.bytes - store.parts[name])
            host = round(TIGHT * (plan.stores[-1].capacity - plan.stores[-1].bytes))
            kind = kind_of(request.program.services[name].ctor)
            yield from kind.remedies(request, request.mesh(name), available, host)
    if store.kind == "gpu" and len(store.services) > 1:
        yield "remove `colocate`, so that each service has its own GPUs"
    if store.kind == "host":
        mesh = request.mesh(largest) if largest in request.dims else None
        if mesh is None or mesh.world * mesh.replicas > 1:
            yield f"start fewer processes of `{largest}`, or use a smaller model"
        else:
            yield f"use a smaller model in `{largest}`, or a host with more memory"


def _served_references(request: Request, store: Store) -> Iterator[str]:
    """Suggest that a trainer of adapters serves a frozen model of the same base."""
    for name in store.services:
        changed = served_by_trainer(request, name)
        if changed is None:
            continue
        kept = {each for each in store.services if each != name} | {request.trainer}
        held = [each for each in plan_memory(changed).stores if kept.intersection(each.services)]
        if all(each.share < TIGHT for each in held):
            model = model_of(request.program.services[name])
            settings = f"{{ served_by = {request.trainer} }}"
            yield f"`service {name} : titan({model}) {settings}` fits"


def _engine_remedy(request: Request, plan: MemoryPlan, store: Store) -> Iterator[str]:
    """Suggest a smaller claim for a colocated engine, if its weights and one sequence still fit."""
    for name in store.services:
        rank = plan.rank(name)
        pool = None if rank is None else rank.pool
        if pool is None:
            continue
        available = TIGHT * store.capacity - (store.bytes - pool.claim)
        needed = sum(item.bytes for item in pool.taken) + pool.context * pool.per_token
        if needed <= available < pool.claim:
            part = int(100 * available / store.capacity) / 100
            yield f"`{name}.{kind_of(request.mesh(name).kind).claim} = {part:g}` fits"


def _no_pool(request: Request, rank: RankMemory, pool: Pool) -> Diagnostic:
    decl, device = request.program.services[rank.service], request.mesh(rank.service).device
    needs = pool.context * pool.per_token
    where = f"{rank.fraction:g} of the GPU" if rank.fraction is not None else "the pool of a CPU"
    notes = [f"{i.bytes / GIB:8.1f} GiB  {i.name}: {i.formula}" for i in pool.taken]
    if device == "gpu":
        notes.insert(0, f"{pool.claim / GIB:8.1f} GiB  {where}, of which these parts are in use:")
    more = "" if device == "cpu" else f"a larger `{rank.service}.parallel.tp`, or "
    return Diagnostic(
        code="P205",
        name="memory",
        severity=Severity.ERROR,
        message=f"`{rank.service}` has {_gib(max(0, pool.bytes))} for the KV cache, but one "
        f"sequence of {pool.context} tokens needs {_gib(needs)}",
        span=_span(decl),
        notes=tuple(notes),
        help=f"{more}a shorter `context` of the model",
    )


def check_pools(
    request: Request, plan: MemoryPlan, wanted: dict[str, int], longest: dict[str, int]
) -> list[Diagnostic]:
    """P211: a generator's KV pool holds fewer full sequences than `wanted`, two per group in
    flight. `longest` has the tokens of a full sequence."""
    found = []
    for name, most in wanted.items():
        rank, decl = plan.rank(name), request.program.services[name]
        pool = None if rank is None else rank.pool
        if pool is None or not longest[name]:
            continue
        mesh, kind = request.mesh(name), kind_of(decl.ctor)
        sequences = mesh.replicas * (pool.tokens // longest[name])
        running = kind.sampling(request.program, decl).most * mesh.replicas
        if sequences >= min(most, running):
            continue
        found.append(
            Diagnostic(
                code="P211",
                name="kv-starved",
                severity=Severity.WARNING,
                message=f"the KV cache of `{name}` holds {sequences} full-length sequences, but "
                f"{most} should decode at once (two of each group in flight)",
                span=_span(decl),
                notes=(
                    f"KV cache {_gib(pool.bytes)} per rank = {pool.tokens:,} tokens, "
                    f"{longest[name]:,} tokens a sequence, {mesh.replicas} replicas",
                ),
                help=f"more `{name}.replicas`, a larger `{name}.parallel.tp` or "
                f"`{name}.{kind.claim}`, or a smaller `sampling.max_tokens`",
            )
        )
    return found


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= 0.05 * GIB else f"{size / 2**20:.0f} MiB"
