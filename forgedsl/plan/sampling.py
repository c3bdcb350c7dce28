"""Cost of sampling: prompts, decode steps, and contexts that are computed again.

sampling node + engine + schedule -> Stage, for one batch at a time and for as many as fit
"""

from __future__ import annotations

from collections.abc import Callable

from forgedsl.families.base import Dims
from forgedsl.ir.graph import Graph, Node
from forgedsl.plan.decoding import launch_seconds
from forgedsl.plan.rates import rates_of
from forgedsl.plan.schedule import SchedulePlan
from forgedsl.plan.sizes import completions, lengths
from forgedsl.plan.stage import Stage
from forgedsl.records import dataclass
from forgedsl.services.registry import kind_of
from forgedsl.sizes.devices import Rates
from forgedsl.sizes.memory import RankMemory, Request, itemsize
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.sizes.params import forward_flops, kv_bytes, num_params
from forgedsl.types.flow import Role

FP8_READ = 1.4
"""cost of reading a byte of an fp8 KV cache relative to bf16 (H200: 101 us per layer, bf16 144
us)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoding:
    """Decode steps of an engine. A prompt has `shared` completions with the same keys and
    values."""

    request: Request
    node: Node
    mesh: MeshPlan
    dims: Dims
    rates: Rates
    prompt: int
    new: int
    shared: int
    itemsize: int
    kv_itemsize: int

    @property
    def prefill(self) -> float:
        """Seconds to compute a token of a prompt."""
        flops = forward_flops(self.dims, self.prompt + self.new)
        return flops / (self.rates.prefill * self.mesh.world)

    def read(self, width: int) -> float:
        """Return the bytes that a step of `width` sequences reads: weights, keys and values."""
        weights = self.itemsize * num_params(self.dims)  # fp8 was not faster where measured
        return weights + self._cache(width)

    def seconds(self, width: int) -> float:
        """Return the seconds of a step of `width` sequences: the larger of FLOPs and bytes."""
        fetched = self.read(width)
        if self.kv_itemsize < self.itemsize and self.mesh.device == "gpu":
            fetched += (FP8_READ - 1) * self._cache(width)
        launches = launch_seconds(
            self.request, self.node.target, self.rates, width=width, itemsize=self.itemsize
        )
        moved = fetched / (self.rates.bandwidth * self.mesh.world)
        return launches + width * self.rates.token + max(moved, width * self.prefill)

    def decode(self, count: int, width: int) -> float:
        """Return the seconds that `count` completions take, `width` at a time."""
        return self.new * in_turns(self.seconds, count, width)

    def _cache(self, width: int) -> float:
        # a GPU reads a prompt's keys and values once for all its completions
        prompt = self.prompt / (self.shared if self.mesh.device == "gpu" else 1)
        each = kv_bytes(self.dims, tp=1, pp=1, itemsize=self.kv_itemsize)
        return width * (prompt + self.new / 2) * each


def in_turns(of: Callable[[int], float], count: int, width: int) -> float:
    """Return the sum of `of(n)` over the steps in which `count` sequences get a token each, at most
    `width` in a step. If a step has others too, its cost is divided among all."""
    if width >= count:
        return of(width) * count / width
    full, rest = divmod(count, width)
    return full * of(width) + (of(rest) if rest else 0.0)


def sample_stage(
    request: Request, graph: Graph, schedule: SchedulePlan, node: Node, held: RankMemory | None
) -> Stage:
    """Return the cost of sampling. An engine without memory (`held`) has enough KV cache."""
    mesh, dims = request.mesh(node.target), request.dims[node.target]
    decl = request.program.services[mesh.service]
    assert dims is not None
    prompt, new = lengths(request, graph, node)
    count, siblings = completions(graph, node), int(node.settings["n"])
    engine = kind_of(decl.ctor).sampling(request.program, decl)
    shared = siblings if engine.shares_prompts else 1
    rates, lag = rates_of(request, mesh), schedule.staleness.lag
    steps = _Decoding(
        request=request, node=node, mesh=mesh, dims=dims, rates=rates, prompt=prompt, new=new,
        shared=shared, itemsize=itemsize(request.program, decl), kv_itemsize=engine.kv_itemsize,
    )  # fmt: skip
    each = -(-count // mesh.replicas)
    most = engine.most
    if held is not None and held.pool is not None:
        most = min(most, int(held.pool.tokens / (prompt / shared + new)))
    width, fewest = (max(1, min(batches * each, most)) for batches in (lag + 1, 1))
    begun = lag * each * (prompt / shared + new / 2)
    again = begun * (steps.prefill + rates.again) * _kv_recomputations(graph, schedule, node)
    first, decode_s = each * prompt / shared * steps.prefill, steps.decode(each, width)
    per_token = forward_flops(dims, prompt + new)
    where = f" on each of {mesh.replicas}" if mesh.replicas > 1 else ""
    return Stage(
        node=node.name, service=node.target, device=mesh.device, tokens=count * new,
        flops=(count * prompt / shared + count * new) * per_token,
        bytes=mesh.replicas * new * in_turns(steps.read, each, width),
        seconds=first + decode_s + again,
        latency=first + max(decode_s, new * steps.seconds(width)) + (lag + 1) * again,
        alone=first + steps.decode(each, fewest) + again,
        batches=max(1.0, width / each),
        detail=f"{count} x {new}, {width} at once{where}",
    )  # fmt: skip


def _kv_recomputations(graph: Graph, schedule: SchedulePlan, node: Node) -> float:
    """Return how often per step a generator recomputes the KV caches of running requests."""
    syncs = (
        sync for sync in graph.having(Role.TRANSFERS) if sync.settings["target"] == node.target
    )
    return sum(map(recomputes_kv_cache, syncs)) / (schedule.every or 1)


def recomputes_kv_cache(sync: Node) -> bool:
    """True if a sync recomputes the KV caches of running requests."""
    return str(sync.settings.get("on_swap", "recompute")) == "recompute"
