"""Compute recorded steps again under another job.

    rows of a step --recorded--> the batch of the run
                   --fired again under the other job--> the batch that it would have made
    both --> Step: scores, advantages, losses, and what has become of each group

The nodes of a group are fired by the code that fires them in a run; only the answers of models come
from the recording.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.lower import job as spec
from forgedsl.runs.whatif import Completions, LossValues, Step, Values
from forgedsl.types.flow import Role
from forgedsl_runtime.controller.assembly import Assembled, assemble
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.firing import Firing
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.data_types import Batch, Rollout, Sample
from forgedsl_runtime.endpoints import Score, seed_of
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.group import Column, Dropped, GroupState
from forgedsl_runtime.guards import FailureGuard
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.modules import load_module
from forgedsl_runtime.proofs.watch import Proofs
from forgedsl_runtime.recorded.columns import rollout_of
from forgedsl_runtime.recorded.files import Row, read
from forgedsl_runtime.state import ControllerState
from forgedsl_runtime.step_metrics import Meter
from forgedsl_runtime.versions import Versions
from forgedsl_runtime.whatif.losses import Measured, Packed, Traced, measure

if TYPE_CHECKING:  # only `--train` has a trainer
    from forgedsl_runtime.services.trainer import TrainerClient

Key = tuple[int, str, int]
LOST = Dropped("not recorded")
MANY = 1_000_000_000
"""limit of failures in a row, so high that failures never end a what-if"""


@dataclass(slots=True)
class Side:
    """A job, with its flow and its loss functions."""

    job: spec.Job
    flow: Flow = field(init=False)
    losses: dict[str, LossFunction] = field(init=False)

    def __post_init__(self) -> None:
        self.flow = analyse(self.job)
        self.losses = {n: LossFunction.from_job(s, "torch") for n, s in self.job.losses.items()}


class Silent(EventLog):
    """Drops all events."""

    def take(self, event: dict[str, Any]) -> None:
        pass


class Rescorer:
    """Computes steps of a run again under `job`; its files are in `folder`. Models in `live`
    compute their log-probs and values; those of other models are recorded."""

    def __init__(
        self, run: spec.Job, job: spec.Job, folder: Path,
        live: Mapping[str, TrainerClient] | None = None,
    ) -> None:  # fmt: skip
        from forgedsl_runtime.whatif.services import RecordedServices

        self._old, self._new, live = Side(run), Side(job), live or {}
        program = load_module("program", job.program)
        self._services = RecordedServices(run, job, folder, program, live)
        events = Silent()
        context = Context(
            job=job, flow=self._new.flow, endpoints=self._services,  # type: ignore[arg-type]
            events=events, state=ControllerState(), versions=Versions({}, served={}),
            failures=FailureGuard(MANY), proofs=Proofs(job), meter=Meter(),
        )  # fmt: skip
        self._firing = Firing(context)
        self._known = {
            node.name for source in self._new.flow.sources for node in source.nodes
            if node.roles & {Role.SAMPLES, Role.MEASURES} and node.target not in live
        }  # fmt: skip
        """nodes of models, whose values are recorded"""
        self._scores = [node for node in self._new.flow.scores if self._is_plain(node)]

    def _is_plain(self, node: spec.Node) -> bool:
        """True if a score reads a sampled completion and the target of its prompt, and nothing
        else: it needs no other node of the flow."""
        sampled, *others = node.inputs
        return (
            not node.compares
            and sampled.edge in self._known
            and sampled.attribute is None
            and self._new.flow.edges[sampled.edge].rollouts
            and len(others) <= 1
            and all(each.attribute == "target" for each in others)
            and all(each.edge == self._new.flow.edges[sampled.edge].root for each in others)
        )

    def step(self, number: int, path: Path) -> Step:
        """Return a recorded step, as it was and as it would be.

        Raises:
            RunError: the other job needs a value that is not recorded, or a reward fails too often.
        """
        rows = read(path)
        by_key = {_key(row): row for row in rows}
        made = {key: rollout_of(row) for key, row in by_key.items()}
        old = list(_groups(self._old.flow, rows, made, {*self._old.flow.edges}))
        new, kept = asyncio.run(self._again(rows, made))
        trained = [group for group in old if not _dropped(rows, group)]
        before = _batches(self._old, trained, rows, number)
        after = _batches(self._new, kept, rows, number)
        packed: dict[str, list[Packed]] = {}
        return Step(
            step=number, groups=len(new), kept_before=len(trained), kept_after=len(kept),
            completions=_completions(by_key, self._old, self._new, new, before, after),
            before=tuple(_measured(self._old, before, by_key, number, packed)),
            after=tuple(_measured(self._new, after, by_key, number, packed)),
        )  # fmt: skip

    async def batches(self, number: int, path: Path) -> dict[str, Assembled]:
        """Return the batch of each step node that the other job makes of a recorded step; none if
        all groups are dropped.

        Raises:
            RunError: as `step`.
        """
        rows = read(path)
        _, kept = await self._again(rows, {_key(row): rollout_of(row) for row in rows})
        return _batches(self._new, kept, rows, number)

    async def _again(
        self, rows: Sequence[Row], made: Mapping[Key, Rollout]
    ) -> tuple[list[GroupState], list[GroupState]]:
        """Fire the nodes of the other job; return all groups of the step, and those in batches."""
        self._services.use(rows)
        groups = list(_groups(self._new.flow, rows, made, self._known))
        gone = await self._fire(groups)
        return groups, [group for group in groups if group.id not in gone]

    def _score(self, group: GroupState) -> Iterator[str]:
        """Compute the scores that need no other node, and store them in the group; yield the names
        of their nodes. If a reward fails, skip its node: it is fired later, which handles the
        failure."""
        for node in self._scores:
            read = node.inputs[0].edge
            if self._new.flow.edges[read].root != group.source.node.name:
                continue
            found: dict[int, Score] = {}
            for number, rollout in group.live(read).items():
                target = rollout.prompt.target if len(node.inputs) > 1 else None
                score = self._services.score_at_once(node.target, rollout, target)
                if score is None:
                    break
                found[number] = score
            else:
                width = self._new.flow.edges[node.name].width or 1
                group.put_all(
                    node.name, [found[i].value if i in found else LOST for i in range(width)]
                )
                group.scores[node.name] = found
                yield node.name

    async def _fire(self, groups: Sequence[GroupState]) -> dict[int, str]:
        """Fire all nodes of the groups; return why groups were dropped."""
        gone: dict[int, str] = {}
        for group in groups:
            known = {*self._known, *self._score(group)}
            if (reason := await self._firing.group(group, known)) is not None:
                gone[group.id] = reason
        kept = [group for group in groups if group.id not in gone]
        if self._new.flow.batch_nodes:
            await self._firing.batch(kept)
        return gone | {group.id: "left the batch" for group in kept if group.abandoned}


def _key(row: Row) -> Key:
    """Return the key of a row's completion: number of the group, edge, index in the edge."""
    return row["unit"], row["edge"], row["cell"]


def _groups(
    flow: Flow, rows: Sequence[Row], made: Mapping[Key, Rollout], known: Collection[str]
) -> Iterator[GroupState]:
    """Yield the groups of a step, with the recorded values of the `known` nodes."""
    by_group: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_group.setdefault((row["source"], row["unit"]), []).append(row)
    sources = {source.node.name: source for source in flow.sources}
    for (name, number), mine in by_group.items():
        if name in sources:
            item = made[_key(mine[0])].prompt
            group = GroupState(flow, sources[name], mine[0]["local"], item)
            group.id = number
            _fill(group, {_key(row): row for row in mine}, made, known)
            yield group


def _fill(
    group: GroupState, rows: Mapping[Key, Row], made: Mapping[Key, Rollout], known: Collection[str]
) -> None:
    """Store recorded values in a group."""
    flow = group.flow
    for name, edge in flow.edges.items():
        if edge.root != group.source.node.name or name == edge.root or name not in known:
            continue
        lineage = edge.lineage or ""
        width = flow.edges[lineage].width if lineage else None
        keys = [(group.id, lineage, cell) for cell in range(width or 1)]
        values = [
            LOST if key not in rows else made[key] if edge.rollouts else _value(rows[key], name)
            for key in keys
        ]
        if edge.width:
            group.put_all(name, values)
        else:
            live = {i: v for i, v in enumerate(values) if not isinstance(v, Dropped)}
            group.put(name, Column(live))
    for node in (node for node in flow.scores if node.name in known):
        read = flow.edges[node.name].lineage
        group.scores[node.name] = {
            row["cell"]: Score(value=row[f"score/{node.name}"])
            for row in rows.values()
            if row["edge"] == read and row.get(f"score/{node.name}") is not None
        }


def _value(row: Row, name: str) -> Any:
    tokens = row.get(f"tokens/{name}")
    value = row.get(f"value/{name}") if tokens is None else tokens
    return LOST if value is None else value


def _dropped(rows: Sequence[Row], group: GroupState) -> bool:
    return any(row["dropped"] is not None for row in rows if row["unit"] == group.id)


def _batches(
    side: Side, groups: Sequence[GroupState], rows: Sequence[Row], step: int
) -> dict[str, Assembled]:
    """Return the batch of each step node; empty if there are no groups."""
    known: dict[tuple[int, str], dict[int, int]] = {}
    for row in rows:
        if row["age"] is not None:
            known.setdefault((row["unit"], row["edge"]), {})[row["cell"]] = row["age"]
    ages: dict[int, dict[str, dict[int, int]]] = {}
    for streams in side.flow.replays.values():
        for stream in streams:
            lineage = side.flow.edges[stream.edge].lineage or ""
            for group in groups:
                mine = known.get((group.id, lineage), {})
                ages.setdefault(group.id, {})[stream.edge] = mine
    found = {}
    for node in side.flow.steps if groups else ():
        found[node.name] = made = assemble(side.flow, node, groups, ages)
        batch = made.batch
        batch.epochs, batch.minibatches = node.epochs, node.minibatches
        batch.seed = seed_of(side.job.seed, step)
        for samples in (batch.samples, *(part for _, part in batch.beside)):
            for sample in samples:
                sample.sequence_fields.setdefault("num_steps", float(step - 1))
    return found


def _completions(
    by_key: Mapping[Key, Row], old: Side, new: Side, groups: Sequence[GroupState],
    before: Mapping[str, Assembled], after: Mapping[str, Assembled],
) -> Completions:  # fmt: skip
    """Return all completions with their scores and advantages, in the run and under the other
    job."""
    rows = [*by_key.values()]
    by_group = {group.id: group for group in groups}
    nodes = {
        edge: [_score_node(side.flow, edge) for side in (old, new)]
        for edge in {row["edge"] for row in rows}
    }
    scores: list[Score | None] = []
    for row in rows:
        group = by_group.get(row["unit"])
        mine = {} if group is None else group.scores.get(nodes[row["edge"]][1], {})
        scores.append(mine.get(row["cell"]))
    columns = [name for name in (rows[0] if rows else ()) if name.startswith("part/")]
    was, now = (_fields(each) for each in (before, after))
    return Completions(
        **{name: [row[name] for row in rows] for name in SHOWN},
        before=[row.get(f"score/{nodes[row['edge']][0]}") for row in rows],
        after=[None if score is None else score.value for score in scores],
        parts=_pairs(
            [{n[5:]: value for n in columns if (value := row[n]) is not None} for row in rows],
            [{} if score is None else score.parts for score in scores],
        ),
        fields=_pairs([was.get(key, {}) for key in by_key], [now.get(key, {}) for key in by_key]),
    )  # fmt: skip


SHOWN = ("group", "sibling", "row", "prompt", "response", "target")
"""columns of a recorded step that are shown"""


def _pairs(
    before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]
) -> dict[str, tuple[Values, Values]]:
    """Return two columns for each name; names are in the order in which completions have them."""
    names = dict.fromkeys(chain.from_iterable(chain.from_iterable(zip(before, after, strict=True))))
    return {name: ([v.get(name) for v in before], [v.get(name) for v in after]) for name in names}


def _score_node(flow: Flow, edge: str) -> str:
    return next((n.name for n in flow.scores if flow.edges[n.name].lineage == edge), "")


def _fields(batches: Mapping[str, Assembled]) -> dict[Key, dict[str, float]]:
    """Return the numbers that losses read, by completion: advantages, weights."""
    found: dict[Key, dict[str, float]] = {}
    for made in batches.values():
        for origins, samples in zip(made.origins, _terms(made.batch), strict=True):
            for key, sample in zip(origins, samples, strict=True):
                mine = {n: v for n, v in sample.sequence_fields.items() if n not in GIVEN}
                found.setdefault(key, {}).update(mine)
    return found


GIVEN = ("num_tokens", "truncated", "num_steps")
"""fields that every completion has"""


def _terms(batch: Batch) -> list[list[Sample]]:
    return [batch.samples, *(samples for _, samples in batch.beside)]


def _measured(
    side: Side, batches: Mapping[str, Assembled], by_key: Mapping[Key, Row], step: int,
    packed: dict[str, list[Packed]],
) -> Iterator[LossValues]:  # fmt: skip
    """Yield the values of the first loss of each step node, if its log-probs are recorded. `packed`
    are the tokens that the other side has packed, by step node; those of this side replace them."""
    for node in side.flow.steps:
        made = batches.get(node.name)
        if made is None:
            continue
        for number, (name, _) in enumerate(node.terms):
            # A further loss has log-probs of each update, not of each epoch: it is left out.
            if number:
                continue
            traced: dict[int, Traced] = {
                epoch: [
                    by_key.get(key, {}).get(f"logprob/{node.name}/{number}/{epoch}")
                    for key in made.origins[number]
                ]
                for epoch in range(node.epochs)
            }
            loss = side.losses[name]
            found = measure(loss, made.batch, traced, packed.get(node.name, ()))
            if found is not None:
                means, packed[node.name] = found
                yield _values(step, name, made.batch, traced[0], means, packed[node.name][0])


def _values(
    step: int, name: str, batch: Batch, traced: Traced, found: Measured, whole: Packed
) -> LossValues:

    def of(chosen: Sequence[int]) -> dict[str, float]:
        tokens = sum(len(traced[i] or ()) for i in chosen)
        return {"tokens": float(tokens), **whole.reports(chosen)}

    ages: dict[int, list[int]] = {}
    for i, age in enumerate(batch.sample_ages):
        if age is not None:
            ages.setdefault(age, []).append(i)
    lengths: dict[int, list[int]] = {}
    for i, sample in enumerate(batch.samples):
        lengths.setdefault(max(1, len(sample.mask)).bit_length(), []).append(i)
    return LossValues(
        step=step, name=name, loss=found.loss, reports=dict(found.reports),
        gradient=found.gradient,
        by_age={age: of(chosen) for age, chosen in sorted(ages.items())},
        by_length={2**n - 1: of(chosen) for n, chosen in sorted(lengths.items())},
    )  # fmt: skip
