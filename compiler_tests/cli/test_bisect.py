"""`forgec bisect`: the first step in which two runs differ, on runs of services that only sleep."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_endpoints import FakeEndpoints, job

from forgedsl.cli.bisect import main
from forgedsl.lower import job as spec
from forgedsl.lower.job import Node
from forgedsl.runs.bisect import differences, equal
from forgedsl.runtime.controller import Controller
from forgedsl.runtime.data_types import Rollout
from forgedsl.runtime.endpoints import Score
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.recorded.files import path_of

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
