"""Cost of one optimizer step: tokens, FLOPs, bytes and seconds of every stage; the bottleneck.

graph + meshes + dims + schedule -> stages -> Cost (step time, idle shares, A307)

Lengths are the declared limits, so the result is an upper bound. In an asynchronous schedule stages
overlap, and the slowest stage or the policy age limits the step time: with a lag of S, at most
S + 1 batches are under way, each from its first sampled token until its weights are synced. The
fewer of them are sampled at a time, the sooner each is done: by Little's law, as many are sampled
as fit the time of one into the time of a step. In a synchronous schedule the times of all stages
add up, as do those of services that share GPUs. Rewards in Python run beside the stages. If their
calls were measured, they limit the step time too (plan/reward_times.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.families.base import Dims
from forgedsl.hir.judges import judge_of, judges, placeholders
from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import Constructor, Program, engine_of, rewards_of
from forgedsl.plan.calibration import factor, share
from forgedsl.plan.decoding import reduce_seconds
from forgedsl.plan.rates import attention_speed, rates_of
from forgedsl.plan.reward_times import Scoring, scorings_of
from forgedsl.plan.sampling import sample_stage
from forgedsl.plan.schedule import SchedulePlan
from forgedsl.plan.sizes import (
    completions,
    data_ranks,
    filled_tokens,
    lengths,
    step_tokens,
    trained_length,
)
from forgedsl.plan.stage import Stage
from forgedsl.records import dataclass, field, replace
from forgedsl.services.registry import kind_of
from forgedsl.sizes.devices import LINK, REDUCE
from forgedsl.sizes.memory import RankMemory, Request, itemsize
from forgedsl.sizes.meshes import MeshPlan, copies_of, number, transport_of
from forgedsl.sizes.params import (
    active_layer_params,
    attention_flops,
    forward_flops,
    kv_width,
    num_params,
    product_flops,
    query_width,
    repeated,
    stage_layers,
    vocab_params,
)
from forgedsl.transports import RATES
from forgedsl.types.flow import WORKS, Role

DEAD_RATES = (0.05, 0.2, 0.5, 0.8, 0.95)
CHARACTERS = 4
"""characters per token of a template"""
SYNC_LAYER = 3.7e-3
"""seconds of a weight sync for each layer, whatever its bytes, to engines on GPUs: tensors are
copied and loaded one by one. Fitted on H200 together with the rates of `ipc` and `peer`, all with
proofs: 1.2 GB of 28 layers in 0.10 s by `ipc` and 0.13 s by `peer`; 8.5 GB of 24 layers in 0.26 to
0.29 s by `peer`"""
BISECTIONS = 40
SLOW = 1.5
"""A307 is reported if a frozen model takes more than this times as long as all other stages
together"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroups:
    """Probability that all completions of a group have equal scores, for a success rate p."""

    node: str
    size: int
    filtered: bool
    rollouts: int = 0
    """completions of a step"""

    def probability(self, p: float) -> float:
        return p**self.size + (1 - p) ** self.size

    def oversampling(self, p: float) -> float:
        """Groups drawn per group kept, if a filter drops dead groups."""
        return 1 / (1 - self.probability(p))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a step. `overlapped`: stages run concurrently, on `lag` + 1 batches, except those of
    services in `sharing`, which share GPUs."""

    stages: tuple[Stage, ...]
    overlapped: bool
    lag: int
    sharing: tuple[str, ...]
    dead: tuple[DeadGroups, ...]
    unknown: tuple[str, ...]
    engines: Mapping[str, str] = field(default_factory=dict)
    """service whose engine serves it, of each service without an engine of its own"""
    scorings: tuple[Scoring, ...] = ()
    """calls of rewards in Python"""

    @property
    def step_seconds(self) -> float:
        times = list(self._lanes().values()) or [0.0]
        slowest = self.slowest_reward
        scored = 0.0 if slowest is None else slowest.seconds
        if self.overlapped:
            return self._shortest(max(*times, scored))
        return sum(times) + max(0.0, scored - self._beside_scores)

    @property
    def _beside_scores(self) -> float:
        """Seconds of the other work beside which rewards are called: of the busiest service, or, if
        stages take turns, of sampling."""
        if self.overlapped:
            return max(self._lanes().values(), default=0.0)
        return sum(stage.seconds for stage in self.stages if Role.SAMPLES in stage.roles)

    @property
    def slowest_reward(self) -> Scoring | None:
        """The reward whose calls, as measured, make a step longer."""
        known = (each for each in self.scorings if each.measured)
        slowest = max(known, key=lambda each: each.seconds, default=None)
        return slowest if slowest is not None and self.limited_by(slowest) else None

    @property
    def bottleneck_reward(self) -> Scoring | None:
        """The reward that limits the step time more than any stage does."""
        slowest = self.slowest_reward
        most = max((stage.seconds for stage in self.stages), default=0.0)
        return slowest if slowest and (self.overlapped or slowest.seconds > most) else None

    def limited_by(self, scoring: Scoring) -> bool:
        """True if the calls of a reward take longer than the work beside which they are made."""
        return not self.unknown and scoring.seconds > self._beside_scores

    def _shortest(self, least: float) -> float:
        """Return the shortest step of at least so many seconds in which the policy age allows the
        batches that are under way."""
        if self._batch(least) <= (self.lag + 1) * least:
            return least
        most = max(least, self._batch(0.0) / (self.lag + 1))
        for _ in range(BISECTIONS):
            middle = (least + most) / 2
            if self._batch(middle) <= (self.lag + 1) * middle:
                most = middle
            else:
                least = middle
        return most

    def _batch(self, step: float) -> float:
        return sum(stage.at(step) for stage in self.stages)

    @property
    def batch_latency(self) -> float:
        """Seconds from a batch's first sampled token until its weights are synced."""
        return self._batch(self.step_seconds)

    @property
    def waits(self) -> bool:
        """True if the policy age limits the step time, so that every service idles between
        batches."""
        busiest = max(self._lanes().values(), default=0.0)
        if (slowest := self.slowest_reward) is not None:
            busiest = max(busiest, slowest.seconds)
        return self.overlapped and self.step_seconds > 1.05 * busiest

    def lane(self, service: str) -> str:
        """Return the lane of a service: the one whose engine serves it, and of these the first of
        the services that share its GPUs."""
        service = self.engines.get(service, service)
        return self.sharing[0] if service in self.sharing else service

    def _lanes(self) -> dict[str, float]:
        """Return the seconds of a step by lane. Times of services on the same GPUs add up."""
        found: dict[str, float] = {}
        for name, seconds in by_service(self.stages).items():
            found[self.lane(name)] = found.get(self.lane(name), 0.0) + seconds
        return found

    @property
    def bottleneck(self) -> Stage | None:
        lanes = self._lanes()
        mine = [s for s in self.stages if lanes[self.lane(s.service)] == max(lanes.values())]
        return max(mine if self.overlapped else self.stages, key=lambda s: s.seconds, default=None)

    @property
    def flops(self) -> float:
        return sum(stage.flops for stage in self.stages)

    def busy(self, service: str) -> float:
        """Return the fraction of a step that the work of a service takes, with as many sequences at
        once as its engine holds. So shares of services on the same GPUs add up to 1 at most. An
        engine that need not hold as many works for longer, beside the bottleneck."""
        step = self.step_seconds
        mine = sum(stage.seconds for stage in self.stages if stage.service == service)
        return mine / step if step else 0.0

    def work(self, stage: Stage, step: float) -> float:
        """Return the seconds of a step in which a stage works: fewer sequences at a time take
        longer in all."""
        if not self.overlapped or stage.batches <= 1:
            return stage.seconds
        return max(stage.seconds, min(step, stage.at(step)))


def plan_cost(
    request: Request,
    graph: Graph,
    schedule: SchedulePlan,
    sharing: tuple[str, ...],
    ranks: Sequence[RankMemory] = (),
) -> Cost:
    """Estimate the cost of a planned graph. `ranks` has the KV pools of engines."""
    stages: list[Stage] = []
    unknown: list[str] = []
    for node in graph.nodes:
        if not node.roles & WORKS:
            continue
        if request.dims[node.target] is None:
            unknown.append(node.target)
            continue
        stages.append(stage_of(request, graph, schedule, node, ranks))
    stages += judge_stages(request, graph)
    return Cost(
        stages=tuple(stages),
        overlapped=schedule.mode == "async",
        lag=schedule.staleness.lag,
        sharing=sharing,
        dead=tuple(_dead_groups(graph)),
        unknown=tuple(dict.fromkeys(unknown)),
        engines={name: engine_of(request.program, name) for name in request.tenant_ranks},
        scorings=scorings_of(request.program, request.host, graph),
    )


def _dead_groups(graph: Graph) -> Iterator[DeadGroups]:
    for node in graph.having(Role.SAMPLES):
        size = int(node.settings["n"])
        if size > 1:
            filtered = bool(graph.having(Role.DROPS))
            count = completions(graph, node)
            yield DeadGroups(node=node.name, size=size, filtered=filtered, rollouts=count)


def engine_judges(program: Program, node: Node) -> dict[str, Constructor]:
    """Return the judges of a score that are engines of the plan, by reward."""
    found = judges(program, rewards_of(program, node.target)).items()
    here = (name for name, service in found if not kind_of(service.ctor).remote)
    return {name: judge for name in here if (judge := judge_of(program.rewards[name]))}


def judge_tokens(judge: Constructor, sampled: Iterable[tuple[int, int]], siblings: int) -> int:
    """Return the maximum tokens of a judge's prompt: its template, prompt and completions."""
    text = judge.args["prompt"]
    found = placeholders(text)
    seen = siblings if "others" in found else 2 if "other" in found else 1
    asked = "prompt" in found
    most = max(seen * new + (prompt if asked else 0) for prompt, new in sampled)
    return len(text) // CHARACTERS + most


def most_siblings(samples: Iterable[Node]) -> int:
    """Return the maximum number of completions per prompt."""
    return max(int(sample.settings["n"]) for sample in samples)


def judge_stages(request: Request, graph: Graph) -> list[Stage]:
    """Return the stages of LLM judges, whose work is reading tokens."""
    return [
        _judge(request, graph, node, name, judge)
        for node in graph.having(Role.SCORES)
        for name, judge in engine_judges(request.program, node).items()
        if request.dims[judge.args["service"]] is not None
    ]


def _judge(request: Request, graph: Graph, node: Node, name: str, judge: Constructor) -> Stage:
    """Return the stage of a judge: prefill only, because the grade is the first token."""
    service = judge.args["service"]
    mesh, dims = request.mesh(service), request.dims[service]
    assert dims is not None
    samples = [graph.node(sampler) for sampler in sorted(node.samplers)]
    siblings = most_siblings(samples)
    each = judge_tokens(judge, (lengths(request, graph, sample) for sample in samples), siblings)
    rivals = siblings - 1 if "other" in placeholders(judge.args["prompt"]) else 1
    count = sum(completions(graph, sample) for sample in samples) * rivals
    flops, rates = count * each * forward_flops(dims, each), rates_of(request, mesh)
    size = itemsize(request.program, request.program.services[mesh.service])
    return Stage(
        node=name, service=service, device=mesh.device, tokens=count * each, flops=flops,
        bytes=float(size * num_params(dims)), detail=f"{count} x {each} read",
        seconds=flops / (rates.prefill * mesh.world * mesh.replicas),
    )  # fmt: skip


def stage_of(
    request: Request,
    graph: Graph,
    schedule: SchedulePlan,
    node: Node,
    ranks: Sequence[RankMemory] = (),
) -> Stage:
    """Return the stage of a node. An engine without an entry in `ranks` is assumed to have enough
    KV cache."""
    if Role.TRANSFERS in node.roles:
        return replace(_sync(request, schedule, node), roles=node.roles)
    if Role.SAMPLES in node.roles:
        engine = request.mesh(node.target).service
        held = next((rank for rank in ranks if rank.service == engine), None)
        most = sample_stage(request, graph, schedule, node, held)
    else:
        most = _model(request, graph, schedule, node)
    part = share(request.program, request.host, node.name)
    times = part * factor(request.host, most.device, node.op)
    return replace(most.slower(times), tokens=round(part * most.tokens), flops=part * most.flops,
                   bytes=part * most.bytes, roles=node.roles)  # fmt: skip


def _model(request: Request, graph: Graph, schedule: SchedulePlan, node: Node) -> Stage:
    mesh, dims = request.mesh(node.target), request.dims[node.target]
    decl = request.program.services[mesh.service]
    assert dims is not None
    tokens = step_tokens(request, graph)
    rows, seq_len = request.rows[mesh.service]
    trained = Role.UPDATES in node.roles
    work = kind_of(decl.ctor).training(request, mesh, dims, trained=trained)
    passes = work.passes
    epochs, many = graph.updates if trained else (1, 1)
    # a backward pass has as many all-reduces as a forward pass
    forwards = epochs * max(1.0, passes - 1)
    passes *= epochs
    length = min(seq_len, trained_length(request, graph))
    products = passes * tokens * product_flops(dims)
    attention = epochs * work.attended * tokens * attention_flops(dims, length)
    rates = rates_of(request, mesh)
    computed = products / rates.train + attention / attention_speed(request, mesh, length)
    filled = filled_tokens(request, graph, mesh.service)
    micros = many * -(-tokens // (many * filled * data_ranks(mesh)))
    launches = micros * passes * rates.pass_on_host(dims.layers)
    bubble = pipeline_slowdown(mesh, dims, micros // many)
    return Stage(
        node=node.name,
        service=node.target,
        device=mesh.device,
        tokens=tokens,
        flops=products + attention,
        bytes=micros * passes * itemsize(request.program, decl) * num_params(dims),
        seconds=bubble
        * (
            _computed(mesh, computed / mesh.world, launches)
            + micros
            * (
                epochs * work.fetched
                + forwards * split_seconds(mesh, dims, filled, itemsize(request.program, decl))
            )
            / mesh.degrees["pp"]
        )
        + epochs * many * work.updated,
        detail=(f"idle {1 - 1 / bubble:.0%}, " if bubble > 1 else "")
        + (f"{epochs} x {many} updates, " if epochs * many > 1 else "")
        + f"{micros // many} x {rows} rows of {seq_len}"
        + (f" on each of {data_ranks(mesh)}" if data_ranks(mesh) > 1 else ""),
        exchanged=epochs * micros * work.sent,
        experts_s=bubble * epochs * micros * work.sent_s if work.sent else 0.0,
    )


def pipeline_slowdown(mesh: MeshPlan, dims: Dims, micros: int) -> float:
    """Pipeline slowdown: bubble and slowest stage, relative to stages that are always busy."""
    pp = mesh.degrees["pp"]
    if pp == 1:
        return 1.0
    *layers, last = stage_layers(dims, pp)
    head = vocab_params(dims) / active_layer_params(dims)
    slowest = pp * max(*layers, last + head) / (dims.layers + head)
    return slowest * (micros + pp - 1) / micros


def _sync(request: Request, schedule: SchedulePlan, node: Node) -> Stage:
    target = str(node.settings["target"])
    size = published_bytes(request, node)
    every = schedule.every or 1
    way = transport_of(request.host, request.meshes, node)
    return Stage(
        node=node.name, service=target, device=request.mesh(target).device, tokens=0, flops=0.0,
        bytes=float(size) / every, seconds=sync_seconds(request, schedule, node, way),
        detail=(f"{size / 2**20:,.0f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB")
        + f" by {way}"
        + (", the adapter alone" if request.adapter_rank(target) is not None else "")
        + _bytes_out_of_host_text(request, node, way, size)
        + (f" every {every} steps" if every > 1 else ""),
    )  # fmt: skip


def _bytes_out_of_host_text(request: Request, node: Node, way: str, size: int) -> str:
    """Return the bytes that a sync sends from the trainer's host as text; "" for at most one
    copy."""
    count = copies_of(request.meshes, node, way)
    return f", {size * count / 2**20:,.0f} out of its host" if count > 1 else ""


def split_seconds(mesh: MeshPlan, dims: Dims, tokens: int, size: int) -> float:
    """Return the seconds of a forward pass's communication: tensor parallelism reduces
    activations, context parallelism exchanges tokens for heads and back in every layer.
    """
    cp, tp = mesh.degrees["cp"], mesh.degrees["tp"]
    reduced = reduce_seconds(mesh, dims, tokens // cp, size)
    if cp == 1 or mesh.device == "cpu":
        return reduced
    width = 2 * query_width(dims) + 2 * kv_width(dims) * repeated(dims, mesh.degrees)
    sent = (cp - 1) / cp * tokens // cp * width * size / tp
    return reduced + dims.layers * (2 * REDUCE + sent / LINK)


def published_bytes(request: Request, node: Node) -> int:
    """Return the bytes of what a weight sync sends; 0 if the model's size is unknown."""
    target = request.program.services[str(node.settings["target"])]
    return itemsize(request.program, target) * request.num_published(node.target)


def sync_seconds(request: Request, schedule: SchedulePlan, node: Node, way: str) -> float:
    """Return the seconds per step of a weight sync by this transport."""
    size, dims = published_bytes(request, node), request.dims[node.target]
    device = request.mesh(str(node.settings["target"])).device
    times = factor(request.host, device, f"sync {way}")
    copies = max(1, copies_of(request.meshes, node, way))
    fixed = SYNC_LAYER * dims.layers if dims is not None and device == "gpu" else 0.0
    return times * (fixed + size * copies / RATES[way]) / (schedule.every or 1)


def _computed(mesh: MeshPlan, products: float, launches: float) -> float:
    """Return the seconds of a model's passes: of its products, and of what the host does for each
    pass. Only a GPU does both at the same time."""
    launches /= mesh.degrees["pp"]
    return max(products, launches) if mesh.device == "gpu" else products + launches


def check_bottleneck(program: Program, cost: Cost) -> list[Diagnostic]:
    """A307: a frozen model limits the step time."""
    slowest = cost.bottleneck
    if slowest is None:
        return []
    others = [stage for stage in cost.stages if stage.service != slowest.service]
    decl = program.services[slowest.service]
    moves = frozenset({Role.UPDATES, Role.TRANSFERS})
    updated = {stage.service for stage in cost.stages if stage.roles & moves}
    if not kind_of(decl.ctor).trains or slowest.service in updated or not others:
        return []
    other = max(others, key=lambda stage: stage.seconds)
    awaited = other.seconds if cost.overlapped else sum(stage.seconds for stage in others)
    if slowest.seconds < SLOW * awaited:
        return []
    return [
        Diagnostic(
            code="A307",
            name="bottleneck",
            severity=Severity.WARNING,
            message=f"service `{slowest.service}`, on {slowest.device.upper()}, limits the step "
            "time",
            span=decl.span,
            table=(Label(text="", span=decl.span),),
            notes=(_bottleneck_note(program, cost, slowest, other),),
            help=", or ".join(_remedies(program, slowest)),
        )
    ]


def _bottleneck_note(program: Program, cost: Cost, slowest: Stage, other: Stage) -> str:
    """`128 rollouts x ~1.1k tokens x 3.4 GFLOP/token = 4.8e14 FLOP per step; ...`."""
    rollouts = sum(group.rollouts for group in cost.dead) or 1
    each, rate = slowest.tokens / rollouts, slowest.flops / slowest.tokens / 1e9
    shown = f"~{each / 1000:.1f}k" if each >= 1000 else f"~{each:.0f}"
    flops = f"{slowest.flops:.1e}".replace("e+", "e")
    procs = number(program.services[slowest.service], "procs", 1)
    where = f"{procs} {slowest.device.upper()} proc{'s' if procs > 1 else ''}"
    return (
        f"{rollouts} rollouts x {shown} tokens x {rate:.1f} GFLOP/token = {flops} FLOP per step; "
        f"{where} ~ {time_text(slowest.seconds)}, {other.service} ~ {time_text(other.seconds)}"
    )


def _remedies(program: Program, slowest: Stage) -> Iterator[str]:
    yield "`device = gpu`" if slowest.device == "cpu" else "more processes"
    fields = {
        i.argument
        for replay in program.flow
        if Role.PACKS in replay.roles
        for i in replay.inputs
        for source in program.flow
        if source.name == i.edge and source.receiver == slowest.service
    }
    from forgedsl.plan.removable_services import freeing_parameter

    name = freeing_parameter(program, fields)
    if name:
        yield f"`{name} = 0.0` (removes the service)"
    else:
        yield "a loss that does not read its log-probs (this removes the service)"


DAY = 24 * 3600


def time_text(seconds: float) -> str:
    """Format a duration: "12 ms", "3.4 s", "12 min"."""
    for limit, unit, size in ((0.9995, "ms", 1e-3), (90, "s", 1.0), (5400, "min", 60.0)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    for limit, unit, size in ((100 * 3600, "h", 3600), (730 * DAY, "days", DAY)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / (365.25 * DAY):,.0f} years"


def by_service(stages: Iterable[Stage]) -> dict[str, float]:
    """Return the seconds of a step in which each service works."""
    found: dict[str, float] = {}
    for stage in stages:
        found[stage.service] = found.get(stage.service, 0.0) + stage.seconds
    return found
