"""The latency model of a job from its plan.

    Job + Plan (cost, memory) --from_plan--> Latencies --assume("generator.tokens=...")--> Latencies

Rates of devices and sizes of models, known from the plan, give the times of engines, trainers and
weight transfers. Unknown values are assumed and listed in `notes`: lengths of completions and
prompts, times of rewards, groups that a filter keeps. A calibration replaces all of them by
measured values.

forgedsl/plan/cost.py estimates full batches of maximum length. Here its rates are split into a
fixed cost per call, and costs per sequence and token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lower.job import Job
from forgedsl.plan.calibration import factor, measured_calls
from forgedsl.plan.cost import sync_seconds
from forgedsl.plan.decoding import launch_seconds, reduce_seconds
from forgedsl.plan.rates import attention_speed, rates_of
from forgedsl.plan.reward_times import call_of
from forgedsl.plan.sampling import FP8_READ, recomputes_kv_cache
from forgedsl.plan.sizes import data_ranks, filled_tokens, lengths, trained_length
from forgedsl.services.registry import kind_of
from forgedsl.sim.latency import Data, Engine, Filter, Latencies, Play, Reward, Titan
from forgedsl.sim.values import Dist, constant
from forgedsl.sizes.memory import itemsize
from forgedsl.sizes.meshes import transport_of
from forgedsl.sizes.params import (
    attention_flops,
    forward_flops,
    kv_bytes,
    num_params,
    product_flops,
)
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.ir.graph import Graph, Node
    from forgedsl.plan.plan import Plan

MEDIAN, SIGMA = 0.35, 0.7
"""completion lengths: median as a fraction of the limit, and sigma of the logarithm"""
PROMPT = 0.5
"""prompt length as a fraction of the limit"""
START = {"cpu": 12.0, "gpu": 40.0}
"""seconds until an engine is ready"""
NOTICE = 10.0
"""seconds until the death of a process is noticed"""
DISK = 2e9
"""bytes/s at which a checkpoint is written"""
SUCCESS = 0.8
"""assumed success rate, from which the fraction of dead groups follows"""
ROWS, EVAL_ROWS = 10_000, 200
TURNS, UNBOUNDED = 0.6, 10
"""turns of a trajectory: median as a fraction of the maximum; maximum if there is no limit"""
PUBLISH = 0.5
"""fraction of a weight transfer in which the trainer is busy"""


def from_plan(job: Job, graph: Graph, plan: Plan) -> Latencies:
    """Return the latency model of a planned job."""
    found, notes = engines(job, graph, plan)
    rewards, more = _rewards(job, plan)
    filters, why = _filters(job)
    environments, played = _environments(job)
    return Latencies(
        engines=found, titans=titans(job, graph, plan), rewards=rewards, filters=filters,
        data=_data(job), environments=environments, notes=(*notes, *played, *more, *why),
    )  # fmt: skip


def _rewards(job: Job, plan: Plan) -> tuple[dict[str, Reward], list[str]]:
    """Estimate rewards: pure functions take almost no time; that of Python rewards and judges is
    assumed as in the plan, unless a calibration has measured it."""
    program, found, notes = plan.request.program, {}, []
    known = measured_calls(program, plan.host)
    for name, reward in job.rewards.items():
        if reward.is_pure:
            found[name] = Reward(seconds=constant(0.0002))
            continue
        call = call_of(program, known, name)
        seconds = Dist(median=call.seconds, sigma=0.5)
        if call.measured:
            seconds = constant(call.seconds)
        else:
            notes.append(f"a call of {name} takes {seconds.text} s")
        found[name] = Reward(seconds=seconds)
    return found, notes


def _filters(job: Job) -> tuple[dict[str, Filter], list[str]]:
    size = max((node.n or 1 for node in job.nodes if Role.SAMPLES in node.roles), default=1)
    keep = 1.0 - SUCCESS**size - (1.0 - SUCCESS) ** size if size > 1 else 1.0
    names = [node.target for node in job.nodes if Role.DECIDES in node.roles]
    note = f"{keep:.0%} of groups (success rate {SUCCESS:g}, {size} completions each)"
    return {n: Filter(keep=keep) for n in names}, [f"filter {n} keeps {note}" for n in names]


def _environments(job: Job) -> tuple[dict[str, Play], list[str]]:
    """Estimate environments: only their largest number of turns is known."""
    found, notes = {}, []
    for name, env in job.environments.items():
        limits = [node.max_turns for node in job.nodes if node.env == name]
        limits += [each.max_turns for each in job.evals.values() if each.env == name]
        most = float(max((limit for limit in limits if limit is not None), default=UNBOUNDED))
        turns = Dist(median=max(1.0, TURNS * most), sigma=0.5, most=most)
        step = Dist(median=0.05, sigma=0.5, most=env.tool_timeout)
        found[name] = Play(turns=turns, step=step)
        notes += [
            f"plays of {name} have {turns.text} turns",
            f"a step of {name} takes {step.text} s",
        ]
    return found, notes


def _data(job: Job) -> dict[str, Data]:
    evals = {spec.dataset for spec in job.evals.values()}
    return {name: Data(rows=EVAL_ROWS if name in evals else ROWS) for name in job.datasets}


def engines(job: Job, graph: Graph, plan: Plan) -> tuple[dict[str, Engine], list[str]]:
    """Estimate all generators, with notes on assumptions."""
    found: dict[str, Engine] = {}
    notes: list[str] = []
    for name, service in job.samplers.items():
        nodes = [node for node in graph.having(Role.SAMPLES) if node.target == name]
        if nodes:
            prompt, new = lengths(plan.request, graph, nodes[0])
        else:  # it only serves evals
            prompt, new = service.sampling.max_tokens, service.sampling.max_tokens
        tokens = Dist(median=max(1.0, MEDIAN * new), sigma=SIGMA, most=float(new))
        found[name] = _engine(plan, graph, name, PROMPT * prompt, tokens)
        notes.append(
            f"completions of {name} have {tokens.text} tokens, prompts {PROMPT * prompt:g}"
        )
    return found, notes


def _engine(plan: Plan, graph: Graph, name: str, prompt: float, tokens: Dist) -> Engine:
    request = plan.request
    mesh, dims = request.mesh(name), request.dims[name]
    decl = request.program.services[mesh.service]
    if dims is None:
        raise UnknownModelError(name)
    size, rates = itemsize(request.program, decl), rates_of(request, mesh)
    engine = kind_of(decl.ctor).sampling(request.program, decl)
    siblings = 1
    if engine.shares_prompts:
        nodes = (n for n in graph.having(Role.SAMPLES) if n.target == name)
        siblings = max((int(node.settings["n"]) for node in nodes), default=1)
    longest = prompt + tokens.mean
    flops = forward_flops(dims, round(longest))
    each = kv_bytes(dims, tp=1, pp=1, itemsize=engine.kv_itemsize)
    width = engine.most
    if (pool := _pool(plan, mesh.service)) is not None:
        alone = (prompt / siblings + tokens.mean) * each / mesh.world
        width = max(1, min(width, int(pool / alone)))
    times = factor(request.host, mesh.device, "sample")
    # the kernel of a GPU reads the keys and values of a prompt once for all its completions
    together = siblings if mesh.device == "gpu" else 1
    context = prompt / together + tokens.mean_place
    bandwidth, compute = rates.bandwidth * mesh.world, rates.prefill * mesh.world
    slower = FP8_READ if engine.kv_itemsize < size and mesh.device == "gpu" else 1.0
    launch = launch_seconds(request, name, rates, width=width, itemsize=size)
    weights, key = size * num_params(dims) / bandwidth, slower * each / bandwidth
    read, multiplied = weights + width * context * key, width * flops / compute
    syncs = [node for node in graph.syncs if node.settings["target"] == name]
    return Engine(
        tokens=tokens,
        prompt=constant(prompt),
        decode=times * (launch + weights),
        decode_sequence=times * (rates.token + (max(read, multiplied) - weights) / width),
        decode_context=times * key if read >= multiplied else 0.0,
        context=context,
        siblings=together,
        prefill=times * flops / compute / siblings,
        max_running=width,
        load=(1 - PUBLISH) * max((transfer(plan, node) for node in syncs), default=0.0),
        start=START[mesh.device] + NOTICE,
        again=times * (flops / compute + rates.again)
        if any(map(recomputes_kv_cache, syncs))
        else 0.0,
    )


def transfer(plan: Plan, node: Node) -> float:
    """Return the seconds of a sync, by its planned transport."""
    way = transport_of(plan.request.host, plan.request.meshes, node)
    return sync_seconds(plan.request, plan.schedule, node, way) * (plan.schedule.every or 1)


class UnknownModelError(Exception):
    """The size of a service's model is unknown."""


def _pool(plan: Plan, name: str) -> int | None:
    """Return the bytes of a rank's KV pool, if it has one."""
    rank = plan.memory.rank(name)
    return None if rank is None or rank.pool is None else max(0, rank.pool.bytes)


def titans(job: Job, graph: Graph, plan: Plan) -> dict[str, Titan]:
    """Estimate all trained and frozen models."""
    return {
        name: _titan(plan, graph, name, trained=service.trained)
        for name, service in job.trainers.items()
    }


def _titan(plan: Plan, graph: Graph, name: str, *, trained: bool) -> Titan:
    request = plan.request
    mesh, dims = request.mesh(name), request.dims[name]
    decl = request.program.services[mesh.service]
    if dims is None:
        raise UnknownModelError(name)
    filled, seq_len = filled_tokens(request, graph, mesh.service), request.rows[mesh.service][1]
    rates, on_gpu = rates_of(request, mesh), mesh.device == "gpu"
    length = min(seq_len, trained_length(request, graph))
    products = product_flops(dims) / (rates.train * mesh.world)
    speed = attention_speed(request, mesh, length) * mesh.world
    attention = attention_flops(dims, length) / speed
    each = filled * data_ranks(mesh)
    kind = kind_of(decl.ctor)
    work = kind.training(request, mesh, dims, trained=trained)
    passes = work.passes
    token = products + attention * work.attended / passes
    epochs, many = graph.updates
    reduce = reduce_seconds(mesh, dims, filled, itemsize(request.program, decl))
    on_host = rates.pass_on_host(dims.layers) / each
    token = max(token, on_host) if on_gpu else token + on_host
    token += (reduce if not trained else reduce * (passes - 1) / passes) / each
    token += work.fetched / each / passes
    synced = [node for node in graph.syncs if node.target == name]
    step, logprobs = (factor(request.host, mesh.device, op) for op in ("step", "logprobs"))
    return Titan(
        step=step * epochs * many * (rates.launch * passes + work.updated) if trained else 0.0,
        token=step * epochs * passes * token if trained else 0.0,
        logprobs=logprobs * rates.launch,
        logprobs_token=logprobs * token,
        publish=PUBLISH * max((transfer(plan, node) for node in synced), default=0.0),
        save=kind.checkpoint_bytes(decl, dims) / DISK / mesh.world if trained else 0.0,
    )
