"""Groups -> the batch of one optimizer step.

    Groups (GroupState), replay streams --assemble--> Batch (samples in order of group and sibling)

A completion becomes a `Sample`: prompt and completion tokens, the sampler's log-probs as
`behavior`, and the named fields: lists with one float per completion token, or single floats for
the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forgedsl.errors import RunError
from forgedsl.lower.job import Node
from forgedsl.types.flow import Role
from forgedsl_runtime.controller.trajectory_log import log_of
from forgedsl_runtime.data_types import Batch, Rollout, Sample
from forgedsl_runtime.endpoints import Score
from forgedsl_runtime.flow import Flow, Stream
from forgedsl_runtime.group import GroupState, number

Completion = tuple[Rollout, Score | None]
SHOWN = 200
"""other answers of a group are shortened to this many characters at either end"""


@dataclass(slots=True, kw_only=True)
class Assembled:
    """A batch, with further values for the metrics."""

    batch: Batch
    completions: list[Completion] = field(default_factory=list)
    """those that are fresh, of which a few are shown to people"""
    scores_by_group: list[list[float]] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    origins: list[list[tuple[int, str, int]]] = field(default_factory=list)
    """by loss and sample: the completion it came from, as (group, sampling node, sibling); (-1, "",
    -1) for a supervised sample"""
    replayed: list[int] = field(default_factory=list)
    """ages of groups drawn from buffers"""


def assemble(
    flow: Flow, step: Node, groups: Sequence[GroupState], ages: dict[int, dict[str, dict[int, int]]]
) -> Assembled:
    """Assemble the batch of a step from replay streams or supervised sources. `ages` is indexed by
    group, stream and sibling."""
    out = Assembled(batch=Batch(samples=[]))
    samples: list[list[Sample]] = []
    for _, edges in step.terms:
        out.batch.samples = []
        out.origins.append([])
        for edge in edges:
            if edge not in flow.replays:
                whole = next(group.item for group in groups if group.source.node.name == edge)
                out.batch.samples += whole.samples
                out.origins[-1] += [(-1, "", -1)] * len(whole.samples)
            for group in groups:
                for stream in flow.replays.get(edge, ()):
                    if (
                        flow.edges[stream.edge].root == group.source.node.name
                        and not group.abandoned
                    ):
                        known = ages.get(group.id, {})
                        _add(flow, out, group, stream, known.get(stream.edge, {}))
        samples.append(out.batch.samples)
    out.batch.samples = samples[0]
    out.batch.sample_ages = out.batch.sample_ages[: len(samples[0])]
    drawn = flow.recalls
    roots = {source.node.name for source in drawn}
    out.batch.beside = [
        (loss, part)
        for (loss, edges), part in zip(step.terms[1:], samples[1:], strict=True)
        if part or not _of(flow, edges) <= roots  # a buffer may still be empty
    ]
    out.batch.groups = [group.id for group in groups if group.source not in drawn]
    return out


def _of(flow: Flow, edges: Sequence[str]) -> set[str]:
    """Return the names of the sources of the completions in these batches; "" for a supervised
    batch."""
    return {
        flow.edges[s.edge].root if s else "" for e in edges for s in flow.replays.get(e, [None])
    }


def _add(
    flow: Flow, out: Assembled, group: GroupState, stream: Stream, ages: dict[int, int]
) -> None:
    lineage = flow.edges[stream.edge].lineage
    primary, scores = _scores(flow, group, lineage)
    sampled = Role.PAIRS not in group.source.node.roles  # pairs come from a dataset
    siblings, values = group.join_inputs([stream.input, *stream.fields])
    batch, recalled = out.batch, group.source in flow.recalls
    fields = [
        (given.argument, column, flow.edges[given.edge].node)
        for given, column in zip(stream.fields, values[1:], strict=True)
    ]
    for row, sibling in enumerate(siblings):
        item = values[0][row]
        sample = item if isinstance(item, Sample) else sample_of(item, sampled=sampled)
        for name, column, node in fields:
            _set(sample, name, column[row] if isinstance(column, list) else column, node)
        batch.samples.append(sample)
        if isinstance(item, Rollout) and not recalled:
            out.completions.append((item, primary.get(sibling)))
    out.origins[-1] += [(group.id, lineage or "", sibling) for sibling in siblings]
    batch.members += [group.id] * len(siblings)
    batch.sample_ages += [ages.get(sibling) for sibling in siblings]
    batch.ages += [ages[sibling] for sibling in siblings if sibling in ages]
    batch.rewards += [primary[sibling].value for sibling in siblings if sibling in primary]
    for name, by_sibling in scores.items():
        for sibling in siblings:
            if sibling in by_sibling:
                out.parts.setdefault(name, []).append(by_sibling[sibling])
    if primary:
        out.scores_by_group.append([primary[s].value for s in siblings if s in primary])


def _scores(
    flow: Flow, group: GroupState, lineage: str | None
) -> tuple[dict[int, Score], dict[str, dict[int, float]]]:
    """Return two mappings: the scores of the first score node of these completions, for the reward
    metrics; and the values of all rewards and score nodes, by name."""
    mine = [
        n for n in flow.scores if flow.edges[n.name].lineage == lineage and n.name in group.scores
    ]
    named: dict[str, dict[int, float]] = {}
    for node in mine:
        for sibling, score in group.scores[node.name].items():
            if len(mine) > 1:
                named.setdefault(node.name, {})[sibling] = score.value
            for part, value in score.parts.items():
                named.setdefault(part, {})[sibling] = value
    return (group.scores[mine[0].name] if mine else {}), named


def sample_of(rollout: Rollout, *, sampled: bool = True) -> Sample:
    """Make a sample with the fields that every completion has: length, truncation and, if it was
    sampled, the sampler's log-probs as `behavior`."""
    sample = Sample(
        token_ids=[*rollout.prompt.token_ids, *rollout.token_ids],
        num_prompt=len(rollout.prompt.token_ids),
        mask=list(rollout.mask),
        sequence_fields={
            "num_tokens": float(rollout.num_tokens),
            "truncated": float(rollout.truncated),
        },
        row_starts=rollout.starts,
        versions=rollout.versions if sampled else (),
        routes=rollout.routes,
    )
    if sampled:
        sample.token_fields["behavior"] = list(rollout.logprobs)
    return sample


def _set(sample: Sample, name: str, value: Any, node: Node) -> None:
    if not isinstance(value, list):
        sample.sequence_fields[name] = number(name, value, node)
        return
    if len(value) != len(sample.mask):
        raise RunError(
            f"{node.op} {node.name} gave {len(value)} values for a completion of "
            f"{len(sample.mask)} tokens",
            origin=node.origin,
        )
    sample.token_fields[name] = value


def _example(rollout: Rollout, score: Score | None) -> dict[str, Any]:
    return {
        "group": rollout.group,
        "sibling": rollout.sibling,
        "prompt": rollout.prompt.text,
        "response": rollout.text,
        "target": rollout.target,
        "score": None if score is None else score.value,
        "version": rollout.version_min,
        "tokens": rollout.num_tokens,
        "truncated": rollout.truncated,
        "parts": {} if score is None else score.parts,
        **rollout.play,
        **({"answers": log_of(rollout)} if rollout.answers else {}),
    }


def choose_examples(completions: Sequence[Completion], count: int) -> list[dict[str, Any]]:
    """Choose `count` completions spread over the range of scores, best first; return each as an
    example for people, with its `siblings`."""
    ranked = sorted(completions, key=lambda each: -(each[1].value if each[1] else 0.0))
    chosen = ranked[:count]
    if len(ranked) > count >= 2:
        chosen = [ranked[round(i * (len(ranked) - 1) / (count - 1))] for i in range(count)]
    groups: dict[int, list[Completion]] = {rollout.group: [] for rollout, _ in chosen}
    for each in completions:
        if each[0].group in groups:
            groups[each[0].group].append(each)
    return [
        _example(*each)
        | {"siblings": [_shortened(*o) for o in groups[each[0].group] if o is not each]}
        for each in chosen
    ]


def _shortened(rollout: Rollout, score: Score | None) -> dict[str, Any]:
    """Shorten another answer of the group: a long text keeps its beginning and its end."""
    text = rollout.text
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} ... {text[-SHOWN:]}"
    return {
        "sibling": rollout.sibling,
        "score": None if score is None else score.value,
        "truncated": rollout.truncated,
        "response": text,
    }
