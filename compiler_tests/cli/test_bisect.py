"""`forgec bisect`: the first step in which two runs differ, on runs of services that only sleep."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_endpoints import FakeEndpoints, job

from forgedsl.cli.bisect import main
from forgedsl.lower import job as spec
from forgedsl.lower.job import Node
from forgedsl.runs.bisect import differences, equal, weights
from forgedsl_runtime.controller import Controller
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.endpoints import Score, SyncResult
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.recorded.files import path_of
from forgedsl_runtime.recorded.weights import WeightsWriter, read_weights

STEPS, PROMPTS = 40, 4
PLANTED = PROMPTS * 36 + 1
"""a group of step 37"""


class Planted(FakeEndpoints):
    """One reward of one completion is higher by a half."""

    async def score(self, node: Node, rollout: Rollout, target: Any) -> Score:
        score = await super().score(node, rollout, target)
        if (rollout.group, rollout.sibling) != (PLANTED, 2):
            return score
        value = score.value + 0.5
        return Score(value=value, parts={"correct": value})


def run(folder: Path, kind: type[FakeEndpoints] = FakeEndpoints, **more: Any) -> Path:
    folder.mkdir()
    made = job(
        steps=STEPS, mode="sync", credits=PROMPTS, prompts=PROMPTS,
        logging=spec.Logging(record="all"), **more,
    ).sealed()  # fmt: skip
    (folder / "job.json").write_text(made.model_dump_json())
    rows: list[str] = []
    log = EventLog()
    log.subscribe(lambda e: rows.append(json.dumps(e)) if e["kind"] == "metrics" else None)

    async def drive() -> None:
        await Controller(made, kind(made), log, record_to=folder).run()

    asyncio.run(asyncio.wait_for(drive(), 120))
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder


def code(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    found = ended.value.code
    assert isinstance(found, int)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return run(folder / "a"), run(folder / "again"), run(folder / "b", Planted)


def test_equal_runs_have_no_difference(
    runs: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code([str(runs[0]), str(runs[1])]) == 0
    assert capsys.readouterr().out == "no difference in 40 steps\n"


def test_a_planted_change_of_one_reward_is_found_at_its_step(
    runs: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code([str(runs[0]), str(runs[2]), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["settings"]) == (37, [])
    first, second, third, *rest = found["differences"]
    where = f"completion 2 of group {PLANTED} (rollout)"
    assert (first["stage"], first["name"], first["where"]) == ("rewards", "part/correct", where)
    assert (first["count"], first["total"]) == (1, 16)
    assert first["after"] - first["before"] == 0.5
    assert second["stage"] == "scores"
    assert (third["stage"], third["count"]) == ("advantages and other functions", 4)
    assert "reward_mean" in [each["name"] for each in rest]


def test_steps_that_are_not_recorded_are_compared_by_their_metrics(
    runs: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("job.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((runs[2] / name).read_bytes())
    assert code([str(runs[0]), str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("step 37 is the first that differs (of 37 compared steps)\n  metrics: ")


def test_a_setting_that_differs_is_named(
    runs: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = run(tmp_path / "other", seed=18)
    assert code([str(runs[0]), str(other)]) == 1
    setting, step, cause, *_ = capsys.readouterr().out.splitlines()
    assert setting.endswith("seed: 17 -> 18")
    assert step.startswith("step 1 ")
    assert cause.startswith("  samples: ")


def test_a_folder_that_is_no_run_is_refused(
    runs: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert code([str(runs[0]), str(tmp_path)]) == 2
    assert "forgec bisect: " in capsys.readouterr().err
    assert path_of(runs[0], 37).is_file()


def test_numbers_are_equal_within_the_tolerance() -> None:
    nan = float("nan")
    assert equal([1.0, nan], [1.0 + 1e-7, nan], 1e-6)
    assert not equal([1.0], [1.0 + 1e-5], 1e-6)
    assert not equal([1.0], [1.0, 1.0], 1e-6)
    assert differences(([], []), ({"loss": 1.0}, {"loss": 1.0 + 1e-7}), 1e-6) == []
    (found,) = differences(([], []), ({"loss": 1.0}, {"loss": 2.0}), 1e-6)
    assert found.text == "metrics: loss 1 -> 2"


# ---- published weights


def published(version: int, *changed: str) -> dict[str, int]:
    names = ("embed", "q", "k", "v", "o", "norm")
    return {n: 2**63 + 10 * version + i + 1000 * (n in changed) for i, n in enumerate(names)}


class Publishing(FakeEndpoints):
    """A trainer whose weights are digested."""

    def digests(self, version: int) -> dict[str, int]:
        return published(version)

    async def sync(self, node: Node, version: int) -> SyncResult:
        return replace(await super().sync(node, version), digests=self.digests(version))


class OtherWeights(Publishing):
    """Two tensors are others from version 12 on; no metric shows it."""

    def digests(self, version: int) -> dict[str, int]:
        return published(version, *(("q", "k") if version >= 12 else ()))


def test_the_tensors_in_which_published_weights_part_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = run(tmp_path / "a", Publishing), run(tmp_path / "again", Publishing)
    other = run(tmp_path / "b", OtherWeights)
    assert code([str(first), str(again)]) == 0
    text = "published weights: equal bit for bit in 41 publications\n"
    assert capsys.readouterr().out.endswith(text)
    assert code([str(first), str(other)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "no difference in 40 steps",
        "published weights: 2 of 6 tensors differ after step 12; equal bit for bit after step 11: "
        "q, k",
    ]
    assert code([str(first), str(other), "--tolerance", "1e-6"]) == 0  # digests have no distance
    capsys.readouterr()
    assert code([str(first), str(other), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["weights"]
    assert (found["step"], found["equal"], found["names"]) == (12, 11, ["q", "k"])


def test_weights_that_differ_from_the_start_say_so() -> None:
    old, new = ({(0, "trainer"): {f"w{i}": f"{i + j}" for i in range(6)}} for j in (0, 1))
    found = weights(old, new)
    assert found is not None
    assert found.text == (
        "published weights: 6 of 6 tensors differ from the start: w0, w1, w2, w3 and 2 more"
    )
    assert weights(old, {}) is None


def test_a_resumed_run_publishes_later_steps_again(tmp_path: Path) -> None:
    writer = WeightsWriter(tmp_path, 0)
    for step in range(4):
        writer.append(step, "trainer", published(step))
    with (tmp_path / "recorded/weights.jsonl").open("a") as file:
        file.write('{"trainer": "trainer", "st')  # a kill cut this line
    resumed = WeightsWriter(tmp_path, 2)
    resumed.append(3, "trainer", published(3, "norm"))
    found = read_weights(tmp_path)
    assert [step for step, _ in found] == [0, 1, 2, 3]
    assert found[2, "trainer"]["norm"] == f"{published(2)['norm']:016x}"
    assert found[3, "trainer"]["norm"] == f"{published(3, 'norm')['norm']:016x}"
