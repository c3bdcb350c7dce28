"""The static view of a job that the simulator works from.

    Job.nodes --workload--> Workload: sources with their stages, batch stages, steps, syncs, evals

It follows runtime/controller/flow.py: a stage makes a value for each completion (it has a width) or
one for the group; it fires for each completion as soon as its inputs are there, or once for the
group; stages that need the assembled batch fire before the step. `tests` hold the two against each
other. Capacities are those of the plan (queues.py); without them an edge holds every credit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forgedsl.lower.job import TitanService
from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.lower.job import Checkpoint, Eval, Job, Node, Schedule

SOURCES = ("draw", "batches", "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One node of the group phase. Inputs and readers are indices into `Source.stages`."""

    name: str
    op: str
    target: str
    width: int | None
    each: bool
    """fires once per completion"""
    inputs: tuple[int, ...]
    readers: tuple[int, ...] = ()
    slots: int
    timeout: float
    offset: int = 0
    """number of the first completion of a sampler within its group"""
    synced: bool = False
    room: int | None = None
    """groups that each edge from here may hold; None: as many as there are credits"""
    to_take: bool = False
    """the batch, or a stage that needs it, reads its values"""
    trained: bool = False
    """its completions, filtered or not, go into the batch: their age counts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`stages[0]` is the draw itself."""

    name: str
    target: str
    index: int
    quota: int
    credits: int
    window: int
    every: int | None
    stages: tuple[Stage, ...]
    syncs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    schedule: Schedule
    sources: tuple[Source, ...]
    at_step: tuple[Node, ...]
    """log-probs under the weights before the step"""
    steps: tuple[Node, ...]
    syncs: tuple[Node, ...]
    evals: Mapping[str, Eval]
    checkpoint: Checkpoint
    rubrics: Mapping[str, tuple[str, ...]]
    """rewards behind each score"""
    untested: frozenset[str]
    """rubrics that give a completion without an end a score of its own: no reward is called"""
    batch_tokens: int
    """tokens of a supervised batch"""
    row_tokens: int
    """tokens of one side of a pair, at most"""
    patience: float


def workload(job: Job, capacities: Mapping[str, int] | None = None) -> Workload:
    """Analyse a job; `capacities` by node, where a test wants other ones than the plan's."""
    sources = [node for node in job.nodes if node.op in SOURCES]
    nodes = [n for n in job.nodes if n.op not in ("replay", "step", "sync")]
    roots: dict[str, str] = {}
    late: set[str] = set()
    for node in nodes:
        roots[node.name] = node.name if node.op in SOURCES else roots[node.inputs[0].edge]
        whole_batch = (node.level == "batch" and node.op != "batches") or node.at_step
        if whole_batch or any(given.edge in late for given in node.inputs):
            late.add(node.name)
    group_nodes = [node for node in nodes if node.name not in late]
    timeouts = [node.timeout for node in group_nodes]
    return Workload(
        schedule=job.schedule,
        sources=tuple(
            _source(job, source, i, len(sources), _mine(group_nodes, roots, source), capacities)
            for i, source in enumerate(sources)
        ),
        at_step=tuple(n for n in nodes if n.name in late and n.op == "logprobs"),
        steps=tuple(n for n in job.nodes if n.op == "step"),
        syncs=tuple(n for n in job.nodes if n.op == "sync"),
        evals=job.evals,
        checkpoint=job.checkpoint,
        rubrics={
            **{r: (r,) for r in job.rewards},
            **{r: s.rewards for r, s in job.rubrics.items()},
        },
        untested=frozenset(n for n, r in job.rubrics.items() if r.on_truncated is not None),
        batch_tokens=_batch_tokens(job),
        row_tokens=_row_tokens(job),
        patience=job.schedule.starve_timeout or 2 * sum(timeouts),
    )


def _mine(nodes: list[Node], roots: Mapping[str, str], source: Node) -> list[Node]:
    return [node for node in nodes if roots[node.name] == source.name]


def _source(
    job: Job,
    source: Node,
    index: int,
    count: int,
    nodes: list[Node],
    capacities: Mapping[str, int] | None,
) -> Source:
    schedule = job.schedule
    samplers = {node.target for node in nodes if node.op == "sample"}
    syncs = [node for node in job.nodes if node.op == "sync" and node.to in samplers]
    whole = 1 if source.op == "batches" else schedule.prompts
    quota = whole if count == 1 or source.op == "batches" else source.count or whole
    inside = {node.name for node in nodes}
    outside = {i.edge for node in job.nodes if node.name not in inside for i in node.inputs}
    return Source(
        name=source.name,
        target=source.target,
        index=index,
        quota=quota,
        credits=max(quota, schedule.credits * quota // schedule.prompts),
        window=max(1, schedule.window * quota // schedule.prompts),
        every=max((node.every for node in syncs), default=None),
        stages=_stages(nodes, {s.to for s in syncs}, capacities, outside),
        syncs=tuple(node.name for node in syncs),
    )


def _stages(
    nodes: list[Node],
    synced: set[str | None],
    capacities: Mapping[str, int] | None,
    outside: set[str],
) -> tuple[Stage, ...]:
    place = {node.name: i for i, node in enumerate(nodes)}
    inputs = [tuple(dict.fromkeys(place[g.edge] for g in n.inputs)) for n in nodes]
    read = {edge for n in nodes for edge in (i.edge for i in n.inputs)}
    trained = set(outside)
    for node in reversed(nodes):
        if node.op == "keep" and node.name in trained:
            trained.add(node.inputs[0].edge)
    widths: list[int | None] = []
    found: list[Stage] = []
    offset = 0
    for i, node in enumerate(nodes):
        width = _width(node, [widths[j] for j in inputs[i]])
        widths.append(width)
        each = width is not None and node.op not in ("logprobs", "keep", *SOURCES)
        found.append(
            Stage(
                name=node.name, op=node.op, target=node.target, width=width, each=each,
                inputs=inputs[i],
                readers=tuple(j for j, given in enumerate(inputs) if i in given),
                slots=node.slots, timeout=node.timeout, offset=offset,
                synced=node.target in synced,
                room=None if capacities is None else capacities[node.name],
                trained=node.op == "sample" and node.name in trained,
                to_take=node.name in outside or node.name not in read,
            )
        )  # fmt: skip
        offset += (width or 1) if node.op == "sample" else 0
    return tuple(found)


def _width(node: Node, read: list[int | None]) -> int | None:
    """Values per group that a node makes; None: one."""
    if node.op in SOURCES:
        return 2 if node.op == "pairs" else None
    if node.op == "keep":
        return read[0]
    if node.op == "sample":
        return read[0] or node.n or 1
    if node.op in ("logprobs", "score") or node.level == "rollout":
        return next((width for width in read if width), None)
    return None


def _row_tokens(job: Job) -> int:
    step = next(node for node in job.nodes if node.op == "step")
    service = job.services[step.target]
    return service.batch.seq_len if isinstance(service, TitanService) else 0


def _batch_tokens(job: Job) -> int:
    step = next(node for node in job.nodes if node.op == "step")
    service = job.services[step.target]
    if not isinstance(service, TitanService):
        return 0
    ranks = service.parallel.dp_shard * service.parallel.dp_replicate
    return _row_tokens(job) * service.batch.rows * ranks * (service.batch.accumulate or 1)
