"""Replay buffers: groups that were trained on are kept, and later steps draw some of them again.

    Groups of a step --put--> Buffer --draw--> Groups of later steps
                                `--> replay.npz of a checkpoint --> Buffer

A drawn group has no credit and no ledger entry. It is drawn when the fresh groups of a step are
ready, and stays in the buffer until newer groups push it out or it is too old. The seed of the draw
is (run seed, name of the draw, step), so a resumed run draws the same groups. If too few groups are
young enough, the step gets fewer groups; it does not wait. Numbers are kept as the trainer reads
them, in f32.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forgedsl.lower.job import Job, Node
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.endpoints import seed_of
from forgedsl_runtime.flow import Edge, Source
from forgedsl_runtime.group import Column, DropGroup, Dropped, GroupState, number
from forgedsl_runtime.operations.base import Context, Operation

SHORT = Dropped("not put")
"""placeholder for completions that were already dropped when their group was put"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stored completion: tokens, per-token values by name ("" is the log-probs), and scalars by
    name."""

    token_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    rows: dict[str, NDArray[np.float32]]
    numbers: dict[str, float]
    truncated: bool
    num_observed: int
    row_starts: tuple[int, ...]
    versions: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A stored group. `born` is the version of its oldest token. With a sampler that is never
    synced, it is the version of the trainer when the group was stored."""

    group: int
    born: int
    prompt: NDArray[np.int32]
    rollouts: tuple[Kept, ...]


class Buffer:
    """The groups of one buffer, oldest first."""

    def __init__(self, context: Context, source: Source) -> None:
        self._flow, self._source = context.flow, source
        self._seed = context.job.seed
        self._versions = context.versions
        self.name = source.node.target
        spec = context.job.buffers[self.name]
        self._put = _put(context.job, self.name)
        given = {i.argument: i for i in self._put.inputs}
        self._rollout, self._keep = given.pop("rollout"), given.pop("keep", None)
        self._fields = tuple(given.values())
        self._sync = self._flow.sync_of(self._flow.edges[self._rollout.edge].lineage or "")
        self._max_age = spec.max_age
        self._groups: deque[StoredGroup] = deque(maxlen=spec.groups)
        self._width = context.flow.edges[source.node.name].width or 1

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, groups: Iterable[GroupState]) -> None:
        """Store the groups of a finished step that pass the buffer's filter."""
        for group in groups:
            root = self._flow.edges[self._rollout.edge].root
            if group.source.node.name != root or group.abandoned:
                continue
            with suppress(DropGroup):  # too few of its completions have every value
                if self._wanted(group):
                    self._groups.append(self._stored(group))

    def draw(self, step: int) -> list[tuple[GroupState, int]]:
        """Draw groups for the step after `step`, at most as many as it asks for; return them with
        ages."""
        now, node = self._now, self._source.node
        young = [group for group in self._groups if now - group.born <= self._max_age]
        self._groups = deque(young, maxlen=self._groups.maxlen)
        chance = random.Random(seed_of(self._seed, node.name, step))
        count = min(len(young), self._source.quota)
        chosen = [young[i] for i in sorted(chance.sample(range(len(young)), count))]
        return [(self._restored(each), now - each.born) for each in chosen]

    @property
    def _now(self) -> int:
        return self._versions.trained[(self._sync or self._flow.steps[0]).target]

    # ---- groups

    def _wanted(self, group: GroupState) -> bool:
        if self._keep is None:
            return True
        verdict = group.group_input(self._keep)
        return all(verdict.values.values()) if isinstance(verdict, Column) else bool(verdict)

    def _stored(self, group: GroupState) -> StoredGroup:
        siblings, (rollouts, *values) = group.join_inputs((self._rollout, *self._fields))
        columns = [v if isinstance(v, list) else [v] * len(siblings) for v in values]
        names, put = [i.argument for i in self._fields], self._put
        now = None if self._sync is not None else self._now
        return StoredGroup(
            group=group.id,
            born=min(r.version_min for r in rollouts) if now is None else now,
            prompt=np.asarray(rollouts[0].prompt.token_ids, np.int32),
            rollouts=tuple(
                _kept(r, dict(zip(names, (column[row] for column in columns), strict=True)), put)
                for row, r in enumerate(rollouts)
            ),
        )

    def _restored(self, stored: StoredGroup) -> GroupState:
        """Make the state of a stored group. Its group id is negative, so that it differs from the
        ids of fresh groups."""
        prompt = Prompt(
            group=stored.group, row=-1, text="", token_ids=stored.prompt.tolist(), target=None
        )
        made: list[Any] = [
            _rollout(r, prompt, sibling) for sibling, r in enumerate(stored.rollouts)
        ]
        made += [SHORT] * (self._width - len(made))
        source = self._source
        group = GroupState(self._flow, source, stored.group, made)
        group.id = ~(stored.group * len(self._flow.recalls) + source.index)
        return group

    # ---- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all groups as concatenated arrays."""
        kept = [rollout for group in self._groups for rollout in group.rollouts]
        heads = [(g.group, g.born, len(g.prompt), len(g.rollouts)) for g in self._groups]
        facts = [(len(r.token_ids), r.truncated, r.num_observed, *r.versions) for r in kept]
        found: dict[str, NDArray[Any]] = {
            "groups": np.asarray(heads, np.int64).reshape(-1, 4),
            "rollouts": np.asarray(facts, np.int64).reshape(-1, 5),
            "prompts": _end_to_end([group.prompt for group in self._groups], np.int32),
            "tokens": _end_to_end([rollout.token_ids for rollout in kept], np.int32),
            "mask": _end_to_end([rollout.mask for rollout in kept], np.bool_),
            "starts": _end_to_end([_marked(rollout) for rollout in kept], np.bool_),
        }
        for name in kept[0].rows if kept else ():
            found[f"row/{name}"] = _end_to_end([rollout.rows[name] for rollout in kept], np.float32)
        for name in kept[0].numbers if kept else ():
            found[f"number/{name}"] = np.asarray([r.numbers[name] for r in kept], np.float32)
        return found

    def load(self, found: Mapping[str, NDArray[Any]]) -> bool:
        """Load the groups of a checkpoint; False if the stored fields are not those that the job
        stores now."""
        parts = {name: _parts_of(found, name) for name in ("row", "number")}
        names = {name for part in parts.values() for name in part} - {""}
        if len(found["groups"]) and names != {i.argument for i in self._fields}:
            return False
        facts = found["rollouts"]
        ends = np.cumsum(facts[:, 0])[:-1]
        rows = {name: np.split(array, ends) for name, array in parts["row"].items()}
        tokens, masks = np.split(found["tokens"], ends), np.split(found["mask"], ends)
        # checkpoints of earlier versions have no `starts`
        none = np.zeros(len(found["tokens"]), np.bool_)
        starts = np.split(found.get("starts", none), ends)
        kept = [
            Kept(
                token_ids=tokens[i], mask=masks[i], rows={k: row[i] for k, row in rows.items()},
                numbers={name: float(array[i]) for name, array in parts["number"].items()},
                truncated=bool(cut), num_observed=int(num_observed),
                row_starts=tuple(np.flatnonzero(starts[i]).tolist()),
                versions=(int(oldest), int(newest)),
            )
            for i, (_, cut, num_observed, oldest, newest) in enumerate(facts)
        ]  # fmt: skip
        prompts = np.split(found["prompts"], np.cumsum(found["groups"][:, 2])[:-1])
        for (group, born, _, count), prompt in zip(found["groups"], prompts, strict=False):
            mine, kept = tuple(kept[:count]), kept[count:]
            self._groups.append(
                StoredGroup(group=int(group), born=int(born), prompt=prompt, rollouts=mine)
            )
        return True


class Put(Operation):
    name = "put"
    fires = "store"


class Recall(Operation):
    name = "recall"
    fires = "stored"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        """Return facts about the output: it has the width of the groups in the buffer, and its
        values are known when a batch is assembled."""
        put = _put(job, node.target)
        kept = edges[next(i.edge for i in put.inputs if i.argument == "rollout")]
        return Edge(
            node=node, root=node.name, lineage=node.name, width=kept.width, rollouts=True,
            in_batch=True,
        )  # fmt: skip

    def store(self, context: Context, source: Source) -> Buffer:
        return Buffer(context, source)


def _put(job: Job, buffer: str) -> Node:
    return next(node for node in job.nodes if node.op == "put" and node.target == buffer)


OPERATIONS = (Put(), Recall())


def _parts_of(found: Mapping[str, NDArray[Any]], head: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(f"{head}/"): found[k] for k in found if k.startswith(f"{head}/")}


def _end_to_end(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _marked(kept: Kept) -> NDArray[np.bool_]:
    """Return True at each token that begins another row."""
    marks = np.zeros(len(kept.token_ids), np.bool_)
    marks[list(kept.row_starts)] = True
    return marks


def _kept(rollout: Rollout, values: Mapping[str, Any], put: Node) -> Kept:
    rows = {"": rollout.logprobs} | {k: v for k, v in values.items() if isinstance(v, list)}
    return Kept(
        token_ids=np.asarray(rollout.token_ids, np.int32),
        mask=np.asarray(rollout.mask, np.bool_),
        rows={name: np.asarray(row, np.float32) for name, row in rows.items()},
        numbers={
            k: float(np.float32(number(k, v, put)))
            for k, v in values.items()
            if not isinstance(v, list)
        },
        truncated=rollout.truncated,
        # A simulated rollout has fewer `token_ids` than its `num_tokens` says. The difference is
        # stored, so that `num_tokens` is the same when the rollout is restored.
        num_observed=len(rollout.token_ids) - rollout.num_tokens,
        row_starts=rollout.row_starts,
        versions=(rollout.version_min, rollout.version_max),
    )  # fmt: skip


def _rollout(kept: Kept, prompt: Prompt, sibling: int) -> Rollout:
    rows = {name: row.tolist() for name, row in kept.rows.items()}
    oldest, newest = kept.versions
    return Rollout(
        group=prompt.group, sibling=sibling, prompt=prompt, token_ids=kept.token_ids.tolist(),
        logprobs=rows.pop(""), mask=kept.mask.tolist(), text="", truncated=kept.truncated,
        version_min=oldest, version_max=newest, started=0.0, finished=0.0,
        num_observed=kept.num_observed, row_starts=kept.row_starts, kept=rows | kept.numbers,
    )  # fmt: skip
