"""Recorded steps: what is in a file, which files stay, and what a kill or a resume leaves."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fake_endpoints import FakeEndpoints, job
from forge_texts import GRPO, graph_of, plan_of

from forgedsl.lower import job as spec
from forgedsl.plan.recording import recording
from forgedsl_runtime.controller import Controller
from forgedsl_runtime.controller.assembly import sample_of
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.group import GroupState
from forgedsl_runtime.recorded.columns import rollout_of, rows_of
from forgedsl_runtime.recorded.files import path_of, read, steps_in, write


def ran(
    folder: Path, *, record: Any = 20, limit: int | None = None, **more: Any
) -> tuple[FakeEndpoints, list[dict[str, Any]]]:
    """Run six steps on services that answer at once; return them and the events."""
    logging = spec.Logging(record=record, record_bytes=limit)
    endpoints = FakeEndpoints(job(logging=logging))
    if "state" in more:
        endpoints = endpoints.restarted(more["state"])
    events: list[dict[str, Any]] = []
    log = EventLog()
    log.subscribe(events.append)

    async def main() -> None:
        await Controller(endpoints.job, endpoints, log, record_to=folder, **more).run()

    asyncio.run(asyncio.wait_for(main(), 60))
    return endpoints, events


def test_a_file_holds_the_samples_that_the_step_trained_on(tmp_path: Path) -> None:
    endpoints, _ = ran(tmp_path)
    assert list(steps_in(tmp_path)) == [1, 2, 3, 4, 5, 6]
    rows = read(path_of(tmp_path, 3))
    trained = endpoints.trained[2]["samples"]
    assert len(rows) == len(trained) == 16
    for row in rows:
        sample, there = sample_of(rollout_of(row)), trained[row["place/step/0"]]
        assert sample.token_ids == there["token_ids"]
        assert row["value/adv"] == there["sequence_fields"]["adv"]
        assert row["tokens/ref_lp"] == there["token_fields"]["ref"]
        assert row["score/score"] == row["part/correct"] == float(sum(row["token_ids"]) % 5) / 4


@pytest.mark.parametrize(("record", "left"), [("all", [1, 2, 3, 4, 5, 6]), (2, [5, 6]), (None, [])])
def test_the_last_steps_stay(tmp_path: Path, record: Any, left: list[int]) -> None:
    ran(tmp_path, record=record)
    assert list(steps_in(tmp_path)) == left


def test_the_oldest_steps_go_when_bytes_are_used_up_and_the_run_says_so(tmp_path: Path) -> None:
    ran(tmp_path / "whole", record="all") if (tmp_path / "whole").mkdir() is None else None
    size = max(path.stat().st_size for path in steps_in(tmp_path / "whole").values())
    (tmp_path / "cut").mkdir()
    _, events = ran(tmp_path / "cut", record="all", limit=2 * size + size // 2)
    assert list(steps_in(tmp_path / "cut")) == [5, 6]
    said = [event["text"] for event in events if event["kind"] == "warning"]
    assert len(said) == 1
    assert "only the last 2 are kept" in said[0]


def test_a_resumed_run_records_each_step_once_and_removes_what_a_kill_left(tmp_path: Path) -> None:
    endpoints, _ = ran(tmp_path)
    before = {step: path.read_bytes() for step, path in steps_in(tmp_path).items()}
    state = endpoints.saved[-1] | {"step": 3, "versions": {"trainer": 3}}
    half = tmp_path / "recorded" / "step-000007.partial"
    half.write_bytes(b"PAR1")
    ran(tmp_path, state=state)
    assert not half.exists()
    assert list(steps_in(tmp_path)) == [1, 2, 3, 4, 5, 6]
    now = {step: path.read_bytes() for step, path in steps_in(tmp_path).items()}
    assert [now[step] == before[step] for step in (1, 2, 3)] == [True] * 3
    assert [len(read(path_of(tmp_path, step))) for step in (4, 5, 6)] == [16] * 3


def test_a_full_disk_leaves_no_half_file_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: Any, path: Path, **options: Any) -> None:
        path.write_bytes(b"PAR1")
        raise OSError("No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    _, events = ran(tmp_path)
    assert list((tmp_path / "recorded").iterdir()) == []
    said = [event["text"] for event in events if event["kind"] == "warning"]
    assert "step 1 is not recorded: No space left on device" in said


def test_dropped_groups_are_in_the_file_of_the_next_step(tmp_path: Path) -> None:
    endpoints = FakeEndpoints(job())
    flow = analyse(endpoints.job)
    group = _group(flow, 1, 16, random.Random(0))
    rows = list(rows_of(flow, group, "keep"))
    assert {row["dropped"] for row in rows} == {"keep"}
    assert len(rows) == 4


def test_a_target_that_json_cannot_hold_is_marked(tmp_path: Path) -> None:
    flow = analyse(job())
    group = _group(flow, 1, 4, random.Random(0), target={1, 2})
    write(tmp_path / "step.parquet", list(rows_of(flow, group, None)))
    assert rollout_of(read(tmp_path / "step.parquet")[0]).target == {"not recorded": "set"}


def test_the_plan_bounds_the_size_of_a_file(tmp_path: Path) -> None:
    """Random ids and log-probs of the longest completions do not compress: the file of 16 x 8 of
    them is between a half and the whole of the planned bytes."""
    over = ("generator.sampling.max_tokens=256", "gsm8k.max_prompt_tokens=64")
    planned, _ = plan_of(GRPO, *over)
    found = recording(graph_of(GRPO, *over)[0], planned)
    assert found is not None
    chance = random.Random(5)
    flow = analyse(job())
    rows = [
        row | {"logprob/step/0/0": [chance.random() for _ in range(256)]}
        for number in range(32)
        for row in rows_of(flow, _group(flow, number, 256, chance, prompt=64), None)
    ]
    write(tmp_path / "step.parquet", rows)
    size = (tmp_path / "step.parquet").stat().st_size
    assert found.step_bytes / 2 < size < found.step_bytes


def test_the_plan_knows_the_usual_size_of_a_file(tmp_path: Path) -> None:
    """Most tokens of a trained policy are almost certain, and their log-probs compress."""
    over = ("generator.sampling.max_tokens=256", "gsm8k.max_prompt_tokens=64")
    planned, _ = plan_of(GRPO, *over)
    found = recording(graph_of(GRPO, *over)[0], planned)
    assert found is not None
    assert found.usual_bytes < found.step_bytes / 2
    chance = random.Random(6)
    flow = analyse(job())

    def certain() -> list[float]:
        return [-chance.random() if chance.random() < 0.35 else 0.0 for _ in range(256)]

    rows = [
        row | {name: certain() for name in ("logprob/step/0/0", "behavior", "tokens/ref_lp")}
        for number in range(32)
        for row in rows_of(flow, _group(flow, number, 256, chance, prompt=64), None)
    ]
    write(tmp_path / "step.parquet", rows)
    size = (tmp_path / "step.parquet").stat().st_size
    assert found.usual_bytes / 2 < size < 2 * found.usual_bytes


def _group(
    flow: Flow, number: int, length: int, chance: random.Random, *, prompt: int = 2,
    target: Any = 1,
) -> GroupState:  # fmt: skip
    """A group of four completions of `length` tokens with random ids and log-probs."""

    def ids(count: int) -> list[int]:
        return [chance.randrange(1 << 17) for _ in range(count)]

    asked = Prompt(group=number, row=1, text="", token_ids=ids(prompt), target=target)
    group = GroupState(flow, flow.sources[0], number, asked)
    for sibling in range(4):
        tokens = ids(length)
        lps = [chance.random() for _ in tokens]
        made = Rollout(
            group=number, sibling=sibling, prompt=asked, token_ids=tokens, logprobs=lps,
            mask=[True] * length, text="".join(map(chr, (33 + t % 90 for t in ids(4 * length)))),
            truncated=False, version_min=0, version_max=0, started=0.0, finished=1.0,
        )  # fmt: skip
        group.put("rollout", made, sibling)
        group.put("ref_lp", [chance.random() for _ in tokens], sibling)
    return group
