"""P205 memory and P211 kv-starved: what does not fit, with its numbers and what would.

    Request + MemoryPlan -> diagnostics

An error above 100 % of a memory, a warning from 92 % on. A remedy is offered only after the plan
with it was computed and fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.ir.program import Decl
from forgedsl.plan.capacity import (
    TIGHT,
    MemoryPlan,
    RankMemory,
    Request,
    Store,
    rank_of,
    starved_engines,
)
from forgedsl.plan.checks import written_at
from forgedsl.plan.memory import (
    GIB,
    MAX_RUNNING,
    Item,
    Phase,
    TrainerShape,
    kv_per_token,
    offloaded,
    vllm_fixed,
    vllm_pool,
)
from forgedsl.plan.meshes import number, setting_label
from forgedsl.records import replace
from forgedsl.source import Span

LONG = 16
"""rows so many times as long as fits are the cause, not the model or the number of processes"""


def check_memory(request: Request, plan: MemoryPlan) -> list[Diagnostic]:
    """P205 for every memory that is too small or tight, and for engines without room for keys."""
    found = [_store(request, plan, store) for store in plan.stores if store.share >= TIGHT]
    names = [rank.service for rank in plan.ranks]
    crowded = {name for store in plan.stores if store.share > 1 for name in store.services}
    for rank in starved_engines(plan.ranks, names):
        if rank.service not in crowded:
            found.append(_no_pool(request, rank))
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
        message = f"{who} {verb} {size} of a GPU that has {has}"
        place = _place(request, largest)
    else:
        message = f"the processes of one host need {size}, and the {store.name} is {has}"
        place = ""
    span = _span(decl, rows=bool(plan.fitting_rows(largest)))
    remedies = tuple(_remedies(request, plan, store, largest))
    if shorter := _shorter(plan, store, largest):
        span = written_at(decl, "batch.seq_len")
        remedies = (shorter,)
    most = max(store.parts, key=lambda name: store.parts[name])
    for key, decls in (
        ("groups", request.program.buffers), ("procs", request.program.environments),
    ):  # fmt: skip
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
        notes=tuple(_notes(plan, store)),
        help="; ".join(remedies),
    )


def _shorter(plan: MemoryPlan, store: Store, name: str) -> str:
    """A length of rows that fits, where one row alone is too long and takes most of a memory."""
    rank = plan.rank(name)
    shape = None if rank is None else rank.trainer
    if shape is None or plan.fitting_rows(name) != 0 or store.parts[name] < 0.5 * store.bytes:
        return ""
    length = plan.fitting_seq_len(name)
    if not 0 < length <= shape.seq_len // LONG:
        return ""
    return f"`{name}.batch.seq_len = {length}` fits, with `batch.rows = 1`"


def _fewer(store: Store, setting: str, count: int, size: int) -> str:
    """So many groups of a buffer or processes of an environment that there is room for the rest."""
    room = 0.9 * store.capacity - (store.bytes - size)
    fitting = int(count * room / size)
    name = setting.partition(".")[0]
    return f"`{setting} = {fitting}` fits" if fitting > 0 else f"no room is left for `{name}`"


def _span(decl: Decl, *, rows: bool = False) -> Span:
    """The setting that is to blame: the microbatch where a smaller one fits, or the claim."""
    for key in (*(("batch.rows", "batch.tokens") if rows else ()), "engine.gpu_memory"):
        if key in decl.settings:
            for label in setting_label(decl, key):
                return label.span
    return decl.name_span


def _place(request: Request, service: str) -> str:
    """E.g. "host 0, GPUs 0-3"."""
    place = request.mesh(service).places[0]
    gpus = f"GPU {place.gpus[0]}" if len(place.gpus) == 1 else (
        f"GPUs {place.gpus[0]}-{place.gpus[-1]}"
    )  # fmt: skip
    return f"host {place.host}, {gpus}"


def _notes(plan: MemoryPlan, store: Store) -> Iterator[str]:
    """The table of the fullest phase: services, and the items of each."""
    yield f"at its fullest in phase {store.phase}, GiB:" if store.kind == "gpu" else "GiB:"
    for name, size in sorted(store.parts.items(), key=lambda part: -part[1]):
        yield f"{size / GIB:8.1f}  {name}"
        rank = plan.rank(name)
        if rank is None or store.kind == "host":
            continue
        phase = next(p for p in rank.phases if p.name == store.phase)
        yield from (f"  {item.bytes / GIB:8.1f}  {item.name}: {item.formula}"
                    for item in _largest(phase))  # fmt: skip


def _largest(phase: Phase) -> list[Item]:
    items = sorted(phase.items, key=lambda item: -item.bytes)
    return [item for item in items if item.bytes >= 0.02 * phase.bytes][:6]


def _remedies(request: Request, plan: MemoryPlan, store: Store, largest: str) -> Iterator[str]:
    """Changes that were tried and fit."""
    smaller = tuple(_engine_remedy(plan, store)) if store.kind == "gpu" else ()
    yield from smaller
    for name in store.services if not smaller else ():
        rank = plan.rank(name)
        rows = plan.fitting_rows(name) or 0
        if rank is None or rank.trainer is None:
            continue
        if 0 < rows < rank.trainer.rows:
            yield f"`{name}.batch.rows = {rows}` fits"
        elif rank.trainer.trained and store.kind == "gpu":
            room = TIGHT * store.capacity - (store.bytes - store.parts[name])
            host = plan.stores[-1].capacity - plan.stores[-1].bytes
            yield from _titan_remedy(request, name, rank.trainer, room, host)
    if store.kind == "gpu" and len(store.services) > 1:
        yield "without `colocate` each has GPUs of its own"
    if store.kind == "host":
        mesh = request.mesh(largest) if largest in request.dims else None
        if mesh is None or mesh.world * mesh.replicas > 1:
            yield f"start fewer processes of `{largest}`, or use a smaller model"
        else:
            yield f"use a smaller model in `{largest}`, or a host with more memory"


def _titan_remedy(
    request: Request, name: str, shape: TrainerShape, room: float, host: int
) -> Iterator[str]:
    """Checkpointing, then the memory of the host, then more ranks, each alone and with one row;
    `room` is what a rank may take, `host` what is left there."""
    mesh = request.mesh(name)
    if shape.checkpointing != "full":
        full = replace(shape, checkpointing="full")
        for rows in (shape.rows, 1):
            if rank_of(mesh, replace(full, rows=rows)).peak <= room:
                more = "" if rows == shape.rows else f" with `{name}.batch.rows = 1`"
                yield f"`{name}.memory.activation_checkpoint = full`{more} fits"
                return
    one = "" if shape.rows == 1 else f" and `{name}.batch.rows = 1`"
    away = replace(shape, offload=True, checkpointing="full", rows=1)
    fits = rank_of(mesh, away).peak <= room and mesh.procs * offloaded(away) <= TIGHT * host
    if fits and not shape.offload:
        yield f"`{name}.memory.offload = true` with full activation checkpointing{one} fits"
    for factor in (2, 4, 8, 16, 32, 64):
        degrees = {**shape.degrees, "dp_shard": factor * shape.degrees["dp_shard"]}
        wide = replace(shape, degrees=degrees, checkpointing="full", rows=1)
        if rank_of(mesh, wide).peak <= room:
            yield (
                f"{factor * mesh.world} processes (`{name}.parallel.dp_shard = "
                f"{degrees['dp_shard']}`) with full activation checkpointing{one} fit"
            )
            return
    yield "shard it over more GPUs, with tensor parallelism too"


def _engine_remedy(plan: MemoryPlan, store: Store) -> Iterator[str]:
    """A smaller claim for a colocated engine, if its weights and one sequence still fit."""
    for name in store.services:
        rank = plan.rank(name)
        shape = None if rank is None else rank.engine
        if shape is None:
            continue
        room = TIGHT * store.capacity - (store.bytes - shape.claim)
        needed = sum(item.bytes for item in vllm_fixed(shape))
        needed += shape.context * kv_per_token(shape)
        if needed <= room < shape.claim:
            part = int(100 * room / store.capacity) / 100
            yield f"`{name}.engine.gpu_memory = {part:g}` fits"


def _no_pool(request: Request, rank: RankMemory) -> Diagnostic:
    shape = rank.engine
    assert shape is not None
    decl = request.program.services[rank.service]
    pool, per_token = vllm_pool(shape), kv_per_token(shape)
    needs = shape.context * per_token
    where = f"{rank.fraction:g} of the GPU" if rank.fraction is not None else "the pool of a CPU"
    notes = [f"{i.bytes / GIB:8.1f} GiB  {i.name}: {i.formula}" for i in vllm_fixed(shape)]
    if shape.device == "gpu":
        notes.insert(0, f"{shape.claim / GIB:8.1f} GiB  {where}, of which are taken:")
    more = "" if shape.device == "cpu" else f"a larger `{rank.service}.parallel.tp`, or "
    return Diagnostic(
        code="P205",
        name="memory",
        severity=Severity.ERROR,
        message=f"`{rank.service}` has {_gib(max(0, pool))} for keys and values, one sequence of "
        f"{shape.context} tokens needs {_gib(needs)}",
        span=_span(decl),
        notes=tuple(notes),
        help=f"{more}a shorter `context` of the model",
    )


def check_pools(
    request: Request, plan: MemoryPlan, wanted: dict[str, int], longest: dict[str, int]
) -> list[Diagnostic]:
    """P211: by generator, two sequences of each group in flight, and the tokens of a full one."""
    found = []
    for name, most in wanted.items():
        rank, decl = plan.rank(name), request.program.services[name]
        shape = None if rank is None else rank.engine
        if shape is None or not longest[name]:
            continue
        mesh = request.mesh(name)
        tokens = vllm_pool(shape) // kv_per_token(shape)
        sequences = mesh.replicas * (tokens // longest[name])
        running = min(MAX_RUNNING, number(decl, "engine.max_running", MAX_RUNNING)) * mesh.replicas
        if sequences >= min(most, running):
            continue
        found.append(
            Diagnostic(
                code="P211",
                name="kv-starved",
                severity=Severity.WARNING,
                message=f"`{name}` holds {sequences} full sequences, and {most} are to decode at "
                "once: two of each group in flight",
                span=_span(decl),
                notes=(
                    f"pool {_gib(vllm_pool(shape))} per rank = {tokens:,} tokens, "
                    f"{longest[name]:,} tokens a sequence, {mesh.replicas} replicas",
                ),
                help=f"more `{name}.replicas`, a larger `{name}.parallel.tp` or "
                f"`{name}.engine.gpu_memory`, or a smaller `sampling.max_tokens`",
            )
        )
    return found


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= 0.05 * GIB else f"{size / 2**20:.0f} MiB"
