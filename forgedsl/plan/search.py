"""Searches placements of a program: which service runs on which GPUs, the shortest step first.

    Space (what may vary) -> layouts of each service -> combinations, by a bound of their time
      -> placed, sized (rows, checkpointing), judged by memory and cost -> Candidate ...

A bound is the step time of a combination with unlimited memory, so never above its actual time.
Combinations are evaluated in the order of their bounds. A candidate is the best of the rest once no
remaining bound is below its time. Ties go to fewer GPUs, then to fewer processes, then to the order
of enumeration, which is fixed. See docs/design/placement.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import ceil, prod
from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import Decl, Program, Ref, engine_of, model_of
from forgedsl.plan import capacity, checks, cost, meshes
from forgedsl.plan.capacity import Store
from forgedsl.plan.cost import Cost
from forgedsl.plan.kept_weights import keeping_weights, with_kept_weights
from forgedsl.plan.meshes import CHOSEN
from forgedsl.plan.pairs import least_rows
from forgedsl.plan.schedule import SchedulePlan
from forgedsl.plan.sizes import data_ranks, step_tokens
from forgedsl.records import dataclass, replace
from forgedsl.services.registry import kind_of
from forgedsl.settings import AUTO, Auto
from forgedsl.sizes.devices import linked
from forgedsl.sizes.experts import fitting
from forgedsl.sizes.memory import RankMemory, Request
from forgedsl.sizes.meshes import MeshPlan, is_default, number
from forgedsl.transports import TRANSPORTS, offered
from forgedsl.types.flow import WORKS, Role

SIZES = ("procs", "replicas", "parallel.tp", "parallel.cp", "parallel.ep", "parallel.dp_shard")
ROWS, CHECKPOINT, CLAIM = "batch.rows", "memory.activation_checkpoint", "engine.gpu_memory"
COLOCATE = "colocate"
MODES = ("none", "selective", "full")
FEW = 16
"""all process counts up to 16 are tried; above it, only 32, 64, ... and the maximum"""
ROOMY = 0.8
"""fraction of a GPU's memory that a layout may use in the first estimate, which does not know
published weights and sharing yet"""
MOST = 2000
"""maximum number of placements to evaluate; then the search ends with the best of them"""

Key = tuple[float, int, int]
"""seconds of a step, GPUs, processes"""
NOWHERE = meshes.Advice(host_name="", fits=lambda names: "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Search space: settings by (service, name), and whether services may share GPUs."""

    free: frozenset[tuple[str, str]]
    colocate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A way to distribute a service over processes, with (seconds, checkpointing, rows) for each
    size of microbatch, the fastest first, and that with the least memory last. Seconds are those
    with kept weights, if the plan may choose them."""

    decl: Decl
    mesh: MeshPlan
    gpus: int
    procs: int
    sizes: tuple[tuple[float, str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A placement that fits. `program` has its settings."""

    key: Key
    program: Program
    colocate: tuple[str, ...]
    request: Request
    stores: tuple[Store, ...]
    cost: Cost


def auto_space(program: Program, graph: Graph) -> Space:
    """Return the search space: the settings that the program leaves `auto`."""
    free = {
        (name, key)
        for name in graph.services
        for key, setting in program.services[name].settings.items()
        if key in CHOSEN and isinstance(setting.value, Auto)
    }
    shared = program.singletons[COLOCATE].settings["value"].value
    return Space(free=frozenset(free), colocate=isinstance(shared, Auto))


def full_space(base: Request, graph: Graph) -> Space:
    """Return the largest search space: all settings that place services on GPUs, without those that
    change the rows of a step."""
    services, trainer = base.program.services, base.trainer
    free = {*auto_space(base.program, graph).free, (trainer, CHECKPOINT)}
    for mesh in (mesh for mesh in base.meshes if mesh.gpus):
        settings = services[mesh.service].settings
        free |= {(mesh.service, k) for k in (*SIZES, CLAIM) if k in settings}
        if "parallel.dp_shard" in settings and isinstance(
            settings["parallel.dp_shard"].value, Auto
        ):
            free.discard((mesh.service, "parallel.dp_shard"))
    if (
        not graph.having(Role.SUPERVISED)
        and services[trainer].settings["batch.tokens"].value is None
    ):
        free.add((trainer, ROWS))
    return Space(free=frozenset(free), colocate=True)


def search(
    base: Request, graph: Graph, schedule: SchedulePlan, space: Space, *, distinct: bool = False
) -> Iterator[Candidate]:
    """Yield the placements that fit, the shortest step first. `base` may have any meshes. With
    `distinct`, placements with the step time of an earlier one are left out."""
    return _Search(base, graph, schedule, space).run(distinct)


def smallest(base: Request, graph: Graph, schedule: SchedulePlan, space: Space) -> Program:
    """Return the program with the smallest placement: one process per service, least memory, all
    sharing that is allowed. If it does not fit, no placement fits."""
    least = {(base.trainer, ROWS): least_rows(base.program, graph)}
    services = dict(base.program.services)
    for name, key in space.free:
        low = "full" if key == CHECKPOINT else least.get((name, key), 1)
        services[name] = changed(services[name], {key: low})
    program = replace(base.program, services=services)
    if not space.colocate:
        return program
    *_, most = _Search(replace(base, program=program), graph, schedule, space).pools()
    return _sharing(program, () if schedule.mode == "async" else most)


def _sharing(program: Program, pool: tuple[str, ...]) -> Program:
    listed = changed(program.singletons[COLOCATE], {"value": [Ref(name=name) for name in pool]})
    return replace(program, singletons={**program.singletons, COLOCATE: listed})


def chosen(space: Space, program: Program) -> dict[str, str]:
    """Return the chosen settings as overrides: "trainer.procs" -> "4"."""
    found = {
        f"{name}.{key}": str(decl.settings[key].value)
        for name, decl in program.services.items()
        for key in CHOSEN
        if (name, key) in space.free and not is_default(decl.settings[key])
    }
    if space.colocate:
        shared = program.singletons[COLOCATE].settings["value"].value
        found[COLOCATE] = f"[{', '.join(ref.name for ref in shared)}]"
    return found


def changed(decl: Decl, values: Mapping[str, Any]) -> Decl:
    """Return a declaration with other values, at the spans of the old ones."""
    new = {key: replace(decl.settings[key], value=value) for key, value in values.items()}
    return replace(decl, settings={**decl.settings, **new})


def format_seconds(key: Key) -> str:
    """Return the seconds of a step, rounded as the page shows them."""
    return f"{key[0]:.3g}"


def counts(most: int) -> list[int]:
    """Return the numbers of processes to try."""
    few = range(1, min(most, FEW) + 1)
    doubled = (FEW << i for i in range(1, most.bit_length()))
    return sorted({*few, *(n for n in doubled if n < most), most})


class _Search:
    """A search. `base` is common to all candidates."""

    def __init__(self, base: Request, graph: Graph, schedule: SchedulePlan, space: Space) -> None:
        self.base, self.graph, self.schedule, self.space = base, graph, schedule, space
        self.least = {base.trainer: least_rows(base.program, graph)}
        """by service: the smallest `batch.rows`, if it is more than 1"""
        self.names = [mesh.service for mesh in base.meshes]
        self.layouts = {name: list(self._layouts(name)) for name in self.names}
        self.weights = [self._weights(sync) for sync in graph.syncs]
        self.num_evaluated = 0
        self.on_cpu: dict[tuple[str, int, float], float] = {}

    def run(self, distinct: bool) -> Iterator[Candidate]:
        """Evaluate combinations in the order of their bounds."""
        waiting: list[tuple[Key, int, tuple[str, ...], tuple[Layout, ...]]] = []
        for pool in self.pools():
            for chosen in product(*(self.layouts[name] for name in self.names)):
                key = self._bound(pool, chosen)
                if key is not None:
                    waiting.append((key, len(waiting), pool, chosen))
        heapq.heapify(waiting)
        found: list[tuple[Key, int, Candidate]] = []
        given: set[str] = set()
        while (waiting and self.num_evaluated < MOST) or found:
            ended = not waiting or self.num_evaluated >= MOST
            if found and (ended or found[0][:2] < waiting[0][:2]):
                key, _, candidate = heapq.heappop(found)
                if not distinct or format_seconds(key) not in given:
                    given.add(format_seconds(key))
                    yield candidate
                continue
            bound, order, pool, chosen = heapq.heappop(waiting)
            if distinct and format_seconds(bound) in given:
                continue
            best = self._sized(pool, chosen)
            if best is not None:
                heapq.heappush(found, (best.key, order, best))

    # ---- choices

    def pools(self) -> Iterator[tuple[str, ...]]:
        """Return the sets of services that share GPUs: as written, or all sets that can take
        turns."""
        if not self.space.colocate:
            listed = self.base.program.singletons[COLOCATE].settings["value"].value
            yield tuple(ref.name for ref in listed if ref.name in self.names)
            return
        on_gpu = [name for name in self.names if self.base.mesh(name).gpus]
        yield ()
        for size in range(2, len(on_gpu) + 1):
            for names in combinations(on_gpu, size):
                turns = checks.concurrent_sharers(self.graph, names)
                if self.schedule.mode != "async" or len(turns) < 2:
                    yield names

    def _layouts(self, name: str) -> Iterator[Layout]:
        """Yield every way to distribute a service that its model and host allow."""
        decl, old = self.base.program.services[name], self.base.mesh(name)
        kind, host = kind_of(decl.ctor), self.base.host
        model = self.base.program.models[model_of(decl)]
        most = host.gpus if old.gpus else 1
        others = prod(number(decl, f"parallel.{d}", 1) for d in kind.degrees
                      if d not in ("tp", "cp", kind.spread))  # fmt: skip
        procs = self._values(decl, "procs", most) if kind.spread else [0]
        replicas = self._values(decl, "replicas", most * host.hosts)
        degrees = (self._values(decl, f"parallel.{d}", most) for d in ("cp", "tp"))
        roomy: set[tuple[int, int, int]] = set()
        combined: list[dict[str, int]] = []
        for cp, tp, n, count in product(*degrees, procs, replicas):
            values = {"parallel.tp": tp, "parallel.cp": cp, "procs": n, "replicas": count}
            if kind.spread:
                values[f"parallel.{kind.spread}"] = max(1, n * old.hosts // (tp * cp * others))
            else:
                values["procs"] = max(1, tp * others // old.hosts)
            combined += [{**values, "parallel.ep": ep} for ep in self._shares(decl, values)]
        for values in combined:
            tp, n, ep = (values[key] for key in ("parallel.tp", "procs", "parallel.ep"))
            if (tp, n, ep) in roomy:
                continue
            free = {k: v for k, v in values.items() if (name, k) in self.space.free}
            new = changed(decl, free | ({CLAIM: AUTO} if (name, CLAIM) in self.space.free else {}))
            problems = Reporter()
            mesh = meshes.plan_mesh(new, problems)
            uneven = checks.check_divisibility(new, mesh, self.base.dims[name], model)
            wide = mesh.gpus and max(mesh.procs, mesh.degrees["tp"]) > host.gpus
            if not (problems.has_errors or uneven or wide or self._is_other_batch(mesh)):
                if self._is_roomy(new, mesh):
                    roomy.add((tp, n, ep))
                yield Layout(decl=new, mesh=mesh, gpus=mesh.total_gpus, procs=mesh.total_procs,
                             sizes=self._options(new, mesh))  # fmt: skip

    def _shares(self, decl: Decl, values: Mapping[str, int]) -> list[int]:
        """Return the degrees of expert parallelism to try; of equal times the largest, which
        gathers least."""
        dims = self.base.dims[decl.name]
        if (decl.name, "parallel.ep") not in self.space.free or dims is None or not dims.experts:
            return [number(decl, "parallel.ep", 1)]
        degrees = ("parallel.dp_shard", "parallel.cp", "parallel.tp")
        return fitting(dims, prod(values.get(key, 1) for key in degrees))[::-1] or [1]

    def _is_roomy(self, decl: Decl, mesh: MeshPlan) -> bool:
        """True if the microbatch fits a GPU without recomputing activations, so that further
        sharding would only cost time.
        """
        rows = self.base.rows.get(decl.name)
        if rows is None or not mesh.gpus:
            return False
        one = self.least.get(decl.name, 1) if (decl.name, ROWS) in self.space.free else rows[0]
        mode = MODES[0] if (decl.name, CHECKPOINT) in self.space.free else ""
        request = self._alone(self._with(decl, mode), mesh, one)
        return _peak(request, mesh) <= ROOMY * self.base.host.gpu_memory

    def _values(self, decl: Decl, key: str, most: int) -> list[int]:
        return counts(most) if (decl.name, key) in self.space.free else [number(decl, key, 1)]

    def _is_other_batch(self, mesh: MeshPlan) -> bool:
        """True if a step of `batches()` would train on other rows than in the base plan."""
        trains = mesh.service == self.base.trainer and self.graph.having(Role.SUPERVISED)
        return bool(trains) and data_ranks(mesh) != data_ranks(self.base.mesh(mesh.service))

    def _options(
        self, decl: Decl, mesh: MeshPlan, cores: float = 0.0
    ) -> tuple[tuple[float, str, int], ...]:
        """Return the sizes of a layout to consider: the fastest first, and that with the least
        memory last. A size is left out if another one takes no more memory, and no more time with
        kept weights and without. Settings outside of the space are unchanged."""
        name, trained = decl.name, decl.name == self.base.trainer
        if name not in self.base.rows:
            return ((self._seconds(decl, mesh, cores=cores), "", 0),)
        rows, seq_len = self.base.rows[name]
        sizes = [rows]
        if (name, ROWS) in self.space.free:
            updates = self.graph.updates[1] if trained else 1
            tokens = step_tokens(self.base, self.graph)
            need = max(1, ceil(tokens / (updates * seq_len * data_ranks(mesh))))
            halved = {1 << i for i in range(need.bit_length())}
            least = self.least.get(name, 1)
            sizes = sorted(
                {max(least, ceil(need / n)) for n in (counts(need) if trained else halved)}
            )
        modes: tuple[str, ...] = ("",)
        if (name, CHECKPOINT) in self.space.free:
            modes = MODES if trained else MODES[:1]
        found: list[tuple[float, str, int]] = []
        known: list[tuple[int, float]] = []
        for option in sorted(
            (self._seconds(self._with(decl, mode), mesh, size, cores), mode, size)
            for mode in modes for size in sizes
        ):  # fmt: skip
            _, mode, size = option
            new = self._with(decl, mode)
            peak = _peak(self._alone(new, mesh, size), mesh)
            plain = option[0]
            if trained:
                plain = self._seconds(new, mesh, size, cores, keeps=False)
            if not any(less <= peak and sooner <= plain for less, sooner in known):
                found.append(option)
                known.append((peak, plain))
        smallest = found[known.index(min(known))]
        return tuple(found if found[-1] == smallest else [*found, smallest])

    def _with(self, decl: Decl, mode: str, rows: int = 0) -> Decl:
        new = changed(decl, {CHECKPOINT: mode}) if mode else decl
        return changed(new, {ROWS: rows}) if rows and (decl.name, ROWS) in self.space.free else new

    # ---- time and memory

    def _alone(self, decl: Decl, mesh: MeshPlan, rows: int, cores: float = 0.0) -> Request:
        """Return the request with this service placed like this, independent of the other
        services.
        """
        program, sizes = self.base.program, dict(self.base.rows)
        program = replace(program, services={**program.services, decl.name: decl})
        if rows:
            sizes[decl.name] = (rows, sizes[decl.name][1])
        if mesh.device == "cpu" and mesh.cpus is None:
            share: Any = cores or self.base.host.cpus  # may be a fraction here
            mesh = replace(mesh, cpus=share)
        others = tuple(mesh if m.service == decl.name else m for m in self.base.meshes)
        return replace(self.base, program=program, meshes=others, rows=sizes)

    def _seconds(
        self, decl: Decl, mesh: MeshPlan, rows: int = 0, cores: float = 0.0, *, keeps: bool = True
    ) -> float:
        """Return the seconds of a step in which a service works, without weight transfers. With
        `keeps`, a trainer keeps its weights, if the plan may choose this."""
        if keeps and decl.name == self.base.trainer:
            decl = keeping_weights(decl, mesh)
        request = self._alone(decl, mesh, rows, cores)
        stages = [
            cost.stage_of(request, self.graph, self.schedule, node)
            for node in self.graph.nodes
            if node.roles & WORKS - {Role.TRANSFERS} and self._serves(decl, node.target)
        ]
        stages += cost.judge_stages(request, self.graph)
        return sum(stage.seconds for stage in stages if self._serves(decl, stage.service))

    def _serves(self, decl: Decl, service: str) -> bool:
        """True if a service works in the processes of `decl`: it is this one, or a tenant of it."""
        return engine_of(self.base.program, service) == decl.name

    def _bound(self, pool: tuple[str, ...], chosen: Sequence[Layout]) -> Key | None:
        """Return a lower bound of the keys of a combination's candidates; None if there are too few
        GPUs."""
        alone, shared, gpu_procs, cpu_procs = 0, 0, 0, 0
        for name, layout in zip(self.names, chosen, strict=True):
            if name in pool:
                shared = max(shared, layout.gpus)
            else:
                alone += layout.gpus
            if layout.gpus:
                gpu_procs += layout.procs
            else:
                cpu_procs += layout.procs
        host = self.base.host
        if alone + shared > host.hosts * host.gpus:
            return None
        # on several hosts, the number of processes per host is unknown before placement
        others = gpu_procs if host.hosts == 1 else 0
        times = {name: layout.sizes[0][0] if layout.gpus or layout.mesh.cpus is not None
                 else self._on_cpu(layout, max(1.0, (host.cpus - others) / cpu_procs))
                 for name, layout in zip(self.names, chosen, strict=True)}  # fmt: skip
        by_name = dict(zip(self.names, chosen, strict=True))
        for source, target, best, close in self.weights:
            ends = by_name[source], by_name[target]
            together = source in pool and target in pool and all(e.procs == 1 for e in ends)
            times[target] += close if together else best
        return _rounded(self._step(pool, times)), alone + shared, gpu_procs + cpu_procs

    def _on_cpu(self, layout: Layout, cores: float) -> float:
        """Return the least seconds of a service without GPU, for a number of cores per process."""
        key = (layout.mesh.service, layout.procs, cores)
        if key not in self.on_cpu:
            self.on_cpu[key] = self._options(layout.decl, layout.mesh, cores)[0][0]
        return self.on_cpu[key]

    def _weights(self, sync: Node) -> tuple[str, str, float, float]:
        """Return sender, receiver, and the least seconds of a weight transfer: in general, and
        between two processes that share a GPU."""
        written = str(sync.settings.get("transport", "auto"))
        ways = [t for t in TRANSPORTS if t.name == written] or [
            *offered(linked=linked(self.base.host.gpu))
        ]

        def best(close: bool) -> float:
            serving = [t.name for t in ways if close or not t.same_gpu] or [ways[0].name]
            return min(cost.sync_seconds(self.base, self.schedule, sync, way) for way in serving)

        return sync.target, str(sync.settings["target"]), best(False), best(True)

    def _step(self, pool: tuple[str, ...], times: Mapping[str, float]) -> float:
        """Return the step time, computed as in `Cost`."""
        if self.schedule.mode != "async":
            return sum(times.values())
        shared = sum(seconds for name, seconds in times.items() if name in pool)
        return max([shared, *(s for name, s in times.items() if name not in pool)])

    def _sized(self, pool: tuple[str, ...], chosen: Sequence[Layout]) -> Candidate | None:
        """Return the fastest sizes of a combination that fit its memory."""
        program, problems = self.base.program, Reporter()
        decls = {layout.decl.name: layout.decl for layout in chosen}
        placed = meshes.place([layout.mesh for layout in chosen], {**program.services, **decls},
                       self.base.host, pool, problems, NOWHERE)  # fmt: skip
        if problems.has_errors:
            return None
        fixed = replace(self.base, meshes=placed)
        lists = [layout.sizes for layout in chosen]
        if self._evaluate(fixed, pool, decls, [sizes[-1] for sizes in lists]) is None:
            return None
        best: Candidate | None = None
        for picked in sorted(product(*lists), key=lambda each: sum(one[0] for one in each)):
            times = {c.mesh.service: one[0] for c, one in zip(chosen, picked, strict=True)}
            if best is not None and _rounded(self._step(pool, times)) >= best.key[0]:
                break
            if self.num_evaluated >= MOST:
                break
            made = self._evaluate(fixed, pool, decls, picked)
            if made is not None and (best is None or made.key < best.key):
                best = made
        return best

    def _evaluate(
        self, fixed: Request, pool: tuple[str, ...], decls: Mapping[str, Decl],
        picked: Sequence[tuple[float, str, int]],
    ) -> Candidate | None:  # fmt: skip
        """Return the candidate with this checkpointing and these rows, if it fits."""
        self.num_evaluated += 1
        new, rows = dict(decls), dict(fixed.rows)
        for name, (_, mode, size) in zip(self.names, picked, strict=True):
            new[name] = self._with(decls[name], mode, size)
            if size:
                rows[name] = (size, rows[name][1])
        program = self.base.program
        program = replace(program, services={**program.services, **new})
        if self.space.colocate:
            program = _sharing(program, pool)
        request = replace(fixed, program=program, rows=rows)
        known = capacity.plan_memory(request)
        if not _fit(known.stores, known.ranks):
            return None
        sharing = tuple(name for name in pool if request.mesh(name).gpus)
        request, memory = with_kept_weights(request, known)
        whole = cost.plan_cost(request, self.graph, self.schedule, sharing, memory.ranks)
        used = {(p.host, g) for m in request.meshes for p in m.places for g in p.gpus}
        procs = sum(mesh.total_procs for mesh in request.meshes)
        return Candidate(key=(_rounded(whole.step_seconds), len(used), procs), program=program,
                         colocate=pool, request=request, stores=memory.stores,
                         cost=whole)  # fmt: skip


def _peak(request: Request, mesh: MeshPlan) -> int:
    """Return the peak bytes of a rank alone; 0 if its kind gives no estimate."""
    rank = kind_of(mesh.kind).rank(request, mesh, {})
    return 0 if rank is None else rank.peak


def _rounded(seconds: float) -> float:
    """Round a time, so that sums in another order compare equal."""
    return float(f"{seconds:.9g}")


def _fit(held: Sequence[Store], ranks: Sequence[RankMemory]) -> bool:
    """True if every memory holds its ranks. Memories with estimated ranks keep a margin; engines
    fill theirs.
    """
    estimated = {rank.service for rank in ranks if rank.fraction is None}
    tight = all(
        store.share <= (capacity.TIGHT if estimated.intersection(store.services) else 1.0)
        for store in held
    )
    return tight and not capacity.starved(ranks, [rank.service for rank in ranks])
