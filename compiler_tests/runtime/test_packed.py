"""One record per group in events.jsonl: nothing that a report or `sim` reads is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forgedsl.runs.data import jsonl, spans
from forgedsl.runs.packed import Packer, unpacked
from forgedsl_runtime.events import EventLog

BEGIN = 1_790_000_000.0
Events = list[dict[str, Any]]


def span(kind: str, ident: int, start: float, seconds: float, **fields: Any) -> Events:
    shared = {"id": ident, **{k: fields[k] for k in ("group", "eval", "sibling") if k in fields}}
    begin = {"time": BEGIN + start, "kind": f"{kind}.start", **shared}
    end = {"time": BEGIN + start + seconds, "kind": f"{kind}.end", "id": ident, **fields}
    return [begin, end | {"seconds": seconds}]


def of_a_group(group: int) -> Events:
    """Eight completions, their scores and log-probs, in the order in which they happen."""
    found = [{"time": BEGIN, "kind": "group.drawn", "group": group, "source": "prompt", "row": 7}]
    for i in range(8):
        more = {"engine_start": BEGIN + 0.2, "engine_end": BEGIN + 0.9 + i / 100}
        found += span(
            "sample", 10 * group + i, 0.1 + i / 1000, 0.9 + i / 100, group=group, sibling=i,
            service="generator", version_min=3, version_max=3, tokens=40 + i, truncated=False,
            running=17 + i, **more,
        )  # fmt: skip
        found += span(
            "score", 100 + 10 * group + i, 1.2 + i / 1000, 0.01, group=group, sibling=i,
            node="score", value=0.9624999999999999 if i else None,
        )  # fmt: skip
    found += span("logprobs", 200 + group, 1.3, 0.2, group=group, node="ref", service="reference")
    found.append({"time": BEGIN + 1.6, "kind": "group.ready", "group": group})
    return sorted(found, key=lambda event: event["time"])


def packed(events: Events) -> Events:
    packer = Packer()
    return [record for event in events for record in packer.take(event)] + packer.rest()


def test_a_group_is_one_record_and_a_fifth_of_the_text() -> None:
    events = of_a_group(3)
    (record,) = packed(events)
    assert 5 * len(json.dumps(record)) < sum(len(json.dumps(event)) for event in events)


def test_the_spans_that_come_back_are_those_that_went_in() -> None:
    events = of_a_group(3) + of_a_group(4)
    back = spans(list(unpacked(json.loads(json.dumps(packed(events))))))
    for kind, before in spans(events).items():
        key = lambda s: (s.fields.get("group"), s.fields.get("sibling"))  # noqa: E731
        for a, b in zip(sorted(before, key=key), sorted(back[kind], key=key), strict=True):
            assert (a.start, a.end) == pytest.approx((b.start, b.end), abs=2e-4)
            for name in a.fields.keys() - {"id", "time"}:
                assert b.fields[name] == pytest.approx(a.fields[name], abs=2e-4), name


def test_what_belongs_to_no_group_is_written_as_it_happens() -> None:
    events = [{"time": 1.0, "kind": "sync.start", "id": 1}, {"time": 2.0, "kind": "warning"}]
    assert packed(events) == events


def test_completions_of_an_eval_are_one_record_before_its_end() -> None:
    begin, end = span("eval", 1, 0.0, 2.0, name="held_out", value=0.5)
    samples = [span("sample", 2 + i, 0.1, 0.4, eval="held_out", row=i) for i in range(3)]
    records = packed([begin, *(event for pair in samples for event in pair), end])
    assert [record["kind"] for record in records] == ["eval.start", "group", "eval.end"]
    assert records[1]["spans"][0]["row"] == [0, 1, 2]


def test_spans_of_a_batch_and_of_a_dropped_group_are_kept() -> None:
    late = span("score", 1, 2.0, 0.1, group=3, node="late", value=1.0)
    dropped = {"time": BEGIN + 3, "kind": "group.dropped", "group": 4, "reason": "filter mixed"}
    step = {"time": BEGIN + 4, "kind": "step.end", "id": 9, "examples": ["..."], "rewards": [1 / 3]}
    records = packed([*of_a_group(3), *of_a_group(4)[:-1], dropped, *late, step])
    kinds = [record["kind"] for record in records]
    assert kinds == ["group", "group", "group.dropped", "group", "step.end"]
    assert records[-1] == {"time": BEGIN + 4, "kind": "step.end", "id": 9, "rewards": [0.333333]}


def test_nothing_stands_behind_the_end_of_a_run() -> None:
    end = {"time": BEGIN + 9, "kind": "run.end", "code": 75}
    records = packed([*of_a_group(3)[:-1], end])
    assert [record["kind"] for record in records] == ["group", "run.end"]


def test_the_log_of_a_run_that_ends_early_keeps_what_it_held_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log, log.span("sample", group=1, sibling=0) as end:
        end["tokens"] = 5
    ends = [e for e in unpacked(jsonl(path, [])) if e["kind"] == "sample.end"]
    assert [(e["group"], e["tokens"]) for e in ends] == [(1, 5)]
