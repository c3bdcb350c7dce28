"""Columns of a recorded step: one row for each completion.

    GroupState of a step --rows_of--> rows --Parquet--> rows --rollout_of--> Rollout

A row holds the completion, its prompt, what rewards read of the dataset's row, and the value of
every node of the flow: `value/NODE` is a number, `tokens/NODE` has one number for each token.
`part/NAME` is a reward, `score/NODE` the score. `place/STEP/K` is the index of the completion's
sample in loss K of step node STEP. `logprob/STEP/K/E` are the log-probs of its trained tokens. For
the first loss (K = 0), E is the epoch; for further losses, it is the number of the update.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.group import MISSING, Column, Dropped, GroupState
from forgedsl_runtime.recorded.files import AS_JSON, Row

LOST = "not recorded"
"""A value that JSON cannot hold is replaced by an object with this key. Its value is the name of
the type"""


def rows_of(flow: Flow, group: GroupState, dropped: str | None) -> Iterator[Row]:
    """Yield a row for each completion of a group. `dropped` is why the group is in no batch."""
    for name, edge in flow.edges.items():
        if edge.root != group.source.node.name or not edge.rollouts or edge.lineage != name:
            continue
        for sibling, item in enumerate(group.cells(name)):
            if isinstance(item, Rollout):
                head = {"edge": name, "source": group.source.node.name, "unit": group.id,
                        "local": group.local, "cell": sibling, "age": None,
                        "dropped": dropped}  # fmt: skip
                yield head | _completion(item) | _values(flow, group, name, sibling)


def _values(flow: Flow, group: GroupState, lineage: str, sibling: int) -> Row:
    """Return the values of the nodes that read this completion, by column."""
    found: Row = {}
    for name, edge in flow.edges.items():
        if edge.root != group.source.node.name or edge.rollouts or edge.lineage != lineage:
            continue
        cells = group.cells(name)
        value = cells[sibling if edge.width else 0]
        if isinstance(value, Column):
            value = value.values.get(sibling)
        if value is None or value is MISSING or isinstance(value, Dropped):
            continue
        if isinstance(value, list):
            found[f"tokens/{name}"] = value
        elif isinstance(value, int | float):
            found[f"value/{name}"] = float(value)
    for node, scores in group.scores.items():
        if flow.edges[node].lineage == lineage and sibling in scores:
            found[f"score/{node}"] = scores[sibling].value
            found |= {f"part/{part}": value for part, value in scores[sibling].parts.items()}
    return found


def _completion(rollout: Rollout) -> Row:
    prompt = rollout.prompt
    return {
        "group": rollout.group, "sibling": rollout.sibling, "row": prompt.row,
        "cursor": prompt.cursor, "prompt": prompt.text, "prompt_ids": prompt.token_ids,
        "messages": _text(prompt.messages), "target": _text(prompt.target),
        "columns": _text(prompt.columns), "level": prompt.level, "response": rollout.text,
        "token_ids": rollout.token_ids, "behavior": rollout.logprobs, "mask": rollout.mask,
        "truncated": rollout.truncated, "version_min": rollout.version_min,
        "version_max": rollout.version_max, "versions": _text(rollout.versions),
        "turns": rollout.turns, "ended": rollout.ended, "rewards": _text(rollout.rewards),
        "turn_rewards": _text(rollout.turn_rewards), "num_observed": rollout.num_observed,
        "row_starts": list(rollout.row_starts), "kept": _text(rollout.kept),
        "fixed": rollout.fixed, "others": list(rollout.others),
    }  # fmt: skip


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """Return the completion that a row holds."""
    # most are empty
    known = {
        name: json.loads(text) if (made := EMPTY.get(text)) is None else made()
        for name in AS_JSON
        for text in [row[name]]
    }
    prompt = Prompt(
        group=row["group"], row=row["row"], text=row["prompt"], token_ids=row["prompt_ids"],
        target=known["target"], cursor=row["cursor"], messages=known["messages"],
        columns=known["columns"], level=row["level"],
    )  # fmt: skip
    return Rollout(
        group=row["group"], sibling=row["sibling"], prompt=prompt, token_ids=row["token_ids"],
        logprobs=row["behavior"], mask=row["mask"], text=row["response"],
        truncated=row["truncated"], version_min=row["version_min"],
        version_max=row["version_max"], started=0.0, finished=0.0, turns=row["turns"],
        ended=row["ended"], rewards=known["rewards"],
        turn_rewards=tuple((at, parts) for at, parts in known["turn_rewards"]),
        num_observed=row["num_observed"], row_starts=tuple(row["row_starts"]),
        versions=tuple((version, count) for version, count in known["versions"]),
        kept=known["kept"], fixed=row["fixed"], others=tuple(row["others"]),
    )  # fmt: skip


EMPTY: dict[str, Callable[[], Any]] = {"null": lambda: None, "[]": list, "{}": dict}


def _text(value: Any) -> str:
    return json.dumps(value, default=lambda each: {LOST: type(each).__name__}, ensure_ascii=False)
