"""Replay of samples: groups that were trained on wait in a buffer, and steps draw of them again.

    Units of a step --put--> Buffer --draw--> Units of later steps
                               `--> replay.npz of a checkpoint --> Buffer

A drawn group has no credit and no ledger: it is taken when the fresh ones of a step are there, and
stays where it is until newer ones push it out or it is too old. Which ones are drawn is decided by
(run seed, step) among those that are young enough, or it is what there is, so that nothing waits
for a buffer and a resumed run draws the same. Numbers are kept as the trainer reads them, in f32.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forgedsl.errors import RunError
from forgedsl.lower.job import Node
from forgedsl.runs.checkpoints import REPLAY
from forgedsl.runtime.controller.context import Context
from forgedsl.runtime.controller.flow import Recall
from forgedsl.runtime.controller.unit import Column, Dead, DropGroup, Unit, number
from forgedsl.runtime.endpoints import seed_of
from forgedsl.runtime.items import Prompt, Rollout

SHORT = Dead("not put")
"""stands for the completions that a group had lost when it was put"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A completion: its tokens, and by name the numbers of each token ("" the log-probs) or one."""

    token_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    rows: dict[str, NDArray[np.float32]]
    numbers: dict[str, float]
    truncated: bool
    observed: int
    versions: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group; `born` is the version of its oldest token, of a sampler that is never synced that of
    the step it was put in."""

    group: int
    born: int
    prompt: NDArray[np.int32]
    rollouts: tuple[Kept, ...]


class Buffer:
    """The groups of one buffer, oldest first."""

    def __init__(self, context: Context, recall: Recall) -> None:
        self._flow, self._recall = context.flow, recall
        self._seed = context.job.seed
        self._versions = context.versions
        spec = context.job.buffers[recall.put.target]
        self._max_age = spec.max_age
        self._groups: deque[Group] = deque(maxlen=spec.groups)
        self._width = context.flow.edges[recall.source.node.name].width or 1

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, units: Iterable[Unit]) -> None:
        """Keep the groups of a step that is done, as far as its filter says so."""
        for unit in units:
            root = self._flow.edges[self._recall.rollout.edge].root
            if unit.source.node.name != root or unit.abandoned:
                continue
            with suppress(DropGroup):  # too few of its completions have every value
                if self._wanted(unit):
                    self._groups.append(self._group(unit))

    def draw(self, step: int) -> list[tuple[Unit, int]]:
        """Groups for the step behind `step`, as many as it asks for or as there are; their ages."""
        now, node = self._now, self._recall.source.node
        young = [group for group in self._groups if now - group.born <= self._max_age]
        self._groups = deque(young, maxlen=self._groups.maxlen)
        chance = random.Random(seed_of(self._seed, node.name, step))
        count = min(len(young), self._recall.source.quota)
        chosen = [young[i] for i in sorted(chance.sample(range(len(young)), count))]
        return [(self._unit(group), now - group.born) for group in chosen]

    @property
    def _now(self) -> int:
        sync = self._recall.sync
        return self._versions.trained[(sync or self._flow.steps[0]).target]

    # ---- groups

    def _wanted(self, unit: Unit) -> bool:
        if self._recall.keep is None:
            return True
        verdict = unit.whole(self._recall.keep)
        return all(verdict.values.values()) if isinstance(verdict, Column) else bool(verdict)

    def _group(self, unit: Unit) -> Group:
        siblings, (rollouts, *values) = unit.joined((self._recall.rollout, *self._recall.fields))
        columns = [v if isinstance(v, list) else [v] * len(siblings) for v in values]
        names, put = [i.argument for i in self._recall.fields], self._recall.put
        now = None if self._recall.sync is not None else self._now
        return Group(
            group=unit.group,
            born=min(r.version_min for r in rollouts) if now is None else now,
            prompt=np.asarray(rollouts[0].prompt.token_ids, np.int32),
            rollouts=tuple(
                _kept(r, dict(zip(names, (column[row] for column in columns), strict=True)), put)
                for row, r in enumerate(rollouts)
            ),
        )

    def _unit(self, group: Group) -> Unit:
        """Its number is below 0: those of fresh groups are not."""
        prompt = Prompt(
            group=group.group, row=-1, text="", token_ids=group.prompt.tolist(), target=None
        )
        made: list[Any] = [_rollout(r, prompt, sibling) for sibling, r in enumerate(group.rollouts)]
        made += [SHORT] * (self._width - len(made))
        source = self._recall.source
        unit = Unit(self._flow, source, group.group, made)
        unit.group = ~(group.group * len(self._flow.recalls) + source.index)
        return unit

    # ---- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All groups, end to end."""
        kept = [rollout for group in self._groups for rollout in group.rollouts]
        heads = [(g.group, g.born, len(g.prompt), len(g.rollouts)) for g in self._groups]
        facts = [(len(r.token_ids), r.truncated, r.observed, *r.versions) for r in kept]
        found: dict[str, NDArray[Any]] = {
            "groups": np.asarray(heads, np.int64).reshape(-1, 4),
            "rollouts": np.asarray(facts, np.int64).reshape(-1, 5),
            "prompts": _end_to_end([group.prompt for group in self._groups], np.int32),
            "tokens": _end_to_end([rollout.token_ids for rollout in kept], np.int32),
            "mask": _end_to_end([rollout.mask for rollout in kept], np.bool_),
        }
        for name in kept[0].rows if kept else ():
            found[f"row/{name}"] = _end_to_end([rollout.rows[name] for rollout in kept], np.float32)
        for name in kept[0].numbers if kept else ():
            found[f"number/{name}"] = np.asarray([r.numbers[name] for r in kept], np.float32)
        return found

    def load(self, found: Mapping[str, NDArray[Any]]) -> bool:
        """Take the groups of a checkpoint; whether they have what is put there now."""
        parts = {name: _parts_of(found, name) for name in ("row", "number")}
        names = {name for part in parts.values() for name in part} - {""}
        if len(found["groups"]) and names != {i.argument for i in self._recall.fields}:
            return False
        facts = found["rollouts"]
        ends = np.cumsum(facts[:, 0])[:-1]
        rows = {name: np.split(array, ends) for name, array in parts["row"].items()}
        tokens, masks = np.split(found["tokens"], ends), np.split(found["mask"], ends)
        kept = [
            Kept(
                token_ids=tokens[i], mask=masks[i], rows={k: row[i] for k, row in rows.items()},
                numbers={name: float(array[i]) for name, array in parts["number"].items()},
                truncated=bool(cut), observed=int(observed), versions=(int(oldest), int(newest)),
            )
            for i, (_, cut, observed, oldest, newest) in enumerate(facts)
        ]  # fmt: skip
        prompts = np.split(found["prompts"], np.cumsum(found["groups"][:, 2])[:-1])
        for (group, born, _, count), prompt in zip(found["groups"], prompts, strict=False):
            mine, kept = tuple(kept[:count]), kept[count:]
            self._groups.append(
                Group(group=int(group), born=int(born), prompt=prompt, rollouts=mine)
            )
        return True


def packed(buffers: Mapping[str, Buffer]) -> bytes | None:
    """The file of a checkpoint; None without buffers."""
    if not buffers:
        return None
    file = io.BytesIO()
    arrays = {
        f"{n}/{key}": a for n, buffer in buffers.items() for key, a in buffer.arrays().items()
    }
    np.savez(file, **arrays)  # type: ignore[arg-type]  # none of the names is that of its flag
    return file.getvalue()


def unpack(data: bytes | None, buffers: Mapping[str, Buffer], held: Mapping[str, int]) -> list[str]:
    """Fill buffers from such a file, of a checkpoint that `held` so many groups of each; the names
    of those that are filled with something else now."""
    wanted = [name for name in buffers if held.get(name)]
    if not wanted:
        return []
    try:
        with np.load(io.BytesIO(data or b"")) as file:
            found = {name: _parts_of(file, name) for name in wanted}
            full = {name: buffers[name].load(found[name]) for name in wanted}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{REPLAY} of the checkpoint, which holds {sum(held.values())} groups of "
            f"{', '.join(wanted)}, " + ("cannot be read" if data else "is not there"),
            remedy="restore the file, or start a new run",
        ) from error
    return [name for name in wanted if not full[name]]


def _parts_of(found: Mapping[str, NDArray[Any]], head: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(f"{head}/"): found[k] for k in found if k.startswith(f"{head}/")}


def _end_to_end(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays])


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
        # a rehearsal counts tokens that it does not make
        observed=len(rollout.token_ids) - rollout.num_tokens,
        versions=(rollout.version_min, rollout.version_max),
    )  # fmt: skip


def _rollout(kept: Kept, prompt: Prompt, sibling: int) -> Rollout:
    rows = {name: row.tolist() for name, row in kept.rows.items()}
    oldest, newest = kept.versions
    return Rollout(
        group=prompt.group, sibling=sibling, prompt=prompt, token_ids=kept.token_ids.tolist(),
        logprobs=rows.pop(""), mask=kept.mask.tolist(), text="", truncated=kept.truncated,
        version_min=oldest, version_max=newest, started=0.0, finished=0.0,
        observed=kept.observed, kept=rows | kept.numbers,
    )  # fmt: skip
