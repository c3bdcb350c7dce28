"""`forgec watch` and `forgec runs` read a run folder as it grows."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.cli.runs import row_of
from forgedsl.runs.follow import follow, last_start
from forgedsl.runs.summary import headline

START = {"time": 1e9, "kind": "run.start", "name": "x", "steps": 4}
END = {"time": 1e9 + 9, "kind": "run.end", "code": 6, "status": "stopped by a guard"}


def lines(*events: dict[str, Any]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def folder(path: Path, *events: dict[str, Any], rows: tuple[dict[str, Any], ...] = ()) -> Path:
    path.mkdir(parents=True)
    job = {"evals": {"held_out": {"loss": None}}, "schedule": {"steps": 4}}
    (path / "job.json").write_text(json.dumps(job))
    (path / "metrics.jsonl").write_text(lines(*rows))
    if events:
        (path / "events.jsonl").write_text(lines(*events))
    return path


def test_the_last_session_is_followed_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(lines(START, END | {"code": 130}, START))
    seen: list[Any] = []

    def write() -> None:  # a line may come in two pieces
        with path.open("a") as file:
            for piece in ('{"time": 1e9, "kind": "no', 'te", "text": "hm"}\n', lines(END)):
                file.write(piece)
                file.flush()

    writer = threading.Timer(0.1, write)
    writer.start()
    code = follow(path, seen.append, lambda: False, since=last_start(path))
    writer.join()
    assert (code, [event["kind"] for event in seen]) == (6, ["run.start", "note", "run.end"])


def test_a_run_that_was_killed_ends_without_a_code(tmp_path: Path) -> None:
    path = folder(tmp_path / "run", START) / "events.jsonl"
    seen: list[Any] = []
    assert follow(path, seen.append, lambda: True) is None
    assert len(seen) == 1


def test_a_folder_of_runs_names_its_newest(tmp_path: Path) -> None:
    folder(tmp_path / "runs/a", START)
    done = CliRunner().invoke(app, ["watch", str(tmp_path / "runs")])
    assert done.exit_code == 2
    assert f"the newest run in it is {tmp_path}/runs/a" in done.stderr


def test_a_killed_run_is_called_so() -> None:
    data = SimpleNamespace(
        outcome={}, rows=[{"step": 3}], seconds=9.0, rehearsal=False, running=False,
        job=SimpleNamespace(name="x", profile="cpu"),
    )  # fmt: skip
    assert headline(data, None) == "x (profile cpu) killed: 3 steps in 9.0 s"
    assert headline(data, 5) == "x (profile cpu) failed: 3 steps in 9.0 s"


def test_a_run_that_has_not_begun_has_taken_no_time() -> None:
    from forgedsl_runtime.readers.view import View

    view = View("x", 4, began=0.0, now=1.8e9)
    assert view.elapsed == 0.0
    view.on_event(START | {"time": 1.8e9})
    view.now += 3
    assert view.elapsed == 3.0


def test_runs_are_listed_with_what_differs(tmp_path: Path) -> None:
    for name, lr in (("a", 0.001), ("b", 0.01)):
        path = folder(tmp_path / name) / "job.json"
        optimizer = {"lr": lr, "kind": "adamw"}
        job = json.loads(path.read_text()) | {"services": {"trainer": {"optimizer": optimizer}}}
        path.write_text(json.dumps(job | {"content_hash": name, "params": {"beta": 0.1}}))
    words = ["runs", str(tmp_path)]
    shown = CliRunner().invoke(app, words).output.splitlines()
    assert [line.split()[-1] for line in shown] == ["trainer.optimizer.lr", "0.001", "0.01"]
    found = json.loads(CliRunner().invoke(app, [*words, "--format", "json"]).output)
    assert [row["differs"] for row in found] == [
        {"services.trainer.optimizer.lr": 0.001}, {"services.trainer.optimizer.lr": 0.01},
    ]  # fmt: skip


def test_a_resume_says_where_it_goes_on_and_what_is_done_again(tmp_path: Path) -> None:
    from forgedsl.cli.resuming import where_from

    run = folder(tmp_path / "run", rows=tuple({"step": step} for step in range(1, 8)))
    assert (
        where_from(run) == "begins with step 1: there is no checkpoint; steps 1 to 7 are repeated"
    )
    saved = run / "checkpoints/step-4/controller.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    text = "continues with step 5, from the checkpoint of step 4; steps 5 to 7 are repeated"
    assert where_from(run) == text


def test_runs_are_listed_with_their_state_and_best_evaluation(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward_mean": 0.5, "eval/held_out": 0.25},
            {"step": 2, "reward_mean": 0.75, "eval/held_out": 0.5},
            {"step": 3, "reward_mean": 0.75, "eval/held_out": 0.375}]  # fmt: skip
    folder(tmp_path / "runs/a", START, END, rows=tuple(rows))
    folder(tmp_path / "runs/b", START | {"time": 2e9})
    folder(tmp_path / "runs/c")
    done = CliRunner().invoke(app, ["runs", str(tmp_path / "runs")])
    assert [line.split("  ")[0] for line in done.output.splitlines()] == ["run", "c", "a", "b"]
    shown = done.output.splitlines()
    assert "not started" in shown[1]
    assert "killed" in shown[3]
    assert all(text in shown[2] for text in ("stopped by a guard", "3/4", "held_out 0.500 at 2"))
    found = json.loads(
        CliRunner().invoke(app, ["runs", str(tmp_path / "runs"), "--format", "json"]).output
    )
    # the mean of the last steps, as `forgec run` says it: of 3 steps the last 1
    assert [row["reward"] for row in found] == [None, 0.75, None]
    assert found[1]["best"] == {"eval": "held_out", "value": 0.5, "step": 2}


def test_the_untrained_model_is_evaluated_at_step_0(tmp_path: Path) -> None:
    rows = [{"step": step, "eval/held_out": value, "eval_version/held_out": step - (step == 1)}
            for step, value in ((1, 0.5), (5, 0.25))]  # fmt: skip
    run = folder(tmp_path / "a", START, END, rows=tuple(rows))
    assert row_of(run)["best"] == {"eval": "held_out", "value": 0.5, "step": 0}


def test_the_reward_of_a_run_is_that_of_its_last_lines(tmp_path: Path) -> None:
    rows = tuple({"step": n, "reward_mean": value} for n, value in enumerate((0, 0, 1, 0.5), 1))
    assert row_of(folder(tmp_path / "a", rows=rows))["reward"] == 0.75
    assert row_of(folder(tmp_path / "b", rows=rows[2:3]))["reward"] == 1


@pytest.mark.parametrize("text", ['{"a": 1}', "[1", "[]"])
def test_a_job_json_of_something_else_hides_no_run(tmp_path: Path, text: str) -> None:
    folder(tmp_path / "good")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/job.json").write_text(text)
    done = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert done.exit_code == 0
    assert "good" in done.stdout
    assert f"{tmp_path / 'other'} is left out: its job.json is not a job" in done.stderr
