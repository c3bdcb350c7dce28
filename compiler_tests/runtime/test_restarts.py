"""A run whose service failed begins anew from its last checkpoint; who is preempted says so."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.errors import RunError, StartError
from forgedsl.lower.job import read_job
from forgedsl_runtime import launch
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.interrupt import Interrupt

FAILED = {"code": 5, "status": "failed", "message": "service t failed: killed"}


def sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any, service: str
) -> tuple[int, list[int | None], list[dict[str, Any]]]:
    """The exit code of a run whose first two sessions fail, where each began, and the events."""
    begun: list[int | None] = []
    events: list[dict[str, Any]] = []

    def outcome(this: Any) -> launch.Outcome:
        begun.append(this.resume)
        if len(begun) == 3:
            return launch.Outcome(code=0, status="done")
        state = tmp_path / f"run/checkpoints/step-{3 * len(begun)}/controller.json"
        state.parent.mkdir(parents=True)
        state.write_text('{"recorded": 2}')
        return launch.Outcome(**FAILED, service=service)

    monkeypatch.setattr(launch, "_outcome", outcome)
    return launch.run(job, tmp_path / "run", readers=[events.append]), begun, events


@pytest.mark.parametrize(
    ("restarts", "service", "code", "begun"),
    [(2, "t", 0, [None, 3, 6]), (1, "t", 5, [None, 3]), (2, "", 5, [None])],
)
def test_a_failed_service_starts_the_run_again(
    restarts: int,
    service: str,
    code: int,
    begun: list[int | None],
    make_job: Any,
    make_titan: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job(services={"t": make_titan()})
    schedule = job.schedule.model_copy(update={"restarts": restarts})
    job = job.model_copy(update={"schedule": schedule})
    found = sessions(tmp_path, monkeypatch, job, service)
    assert found[:2] == (code, begun)
    again = [event["text"] for event in found[2] if event["kind"] == "notice"]
    assert len(again) == len(begun) - 1
    assert all("killed; the run restarts from its checkpoint of step" in text for text in again)
    assert [event["kind"] for event in found[2]].count("run.end") == 1


@pytest.mark.parametrize(
    ("restarts", "at_start", "code"), [(1, True, 0), (0, True, 5), (1, False, 5)]
)
def test_a_service_that_is_killed_while_it_starts_starts_the_run_again(
    restarts: int,
    at_start: bool,
    code: int,
    make_job: Any,
    make_titan: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost without a checkpoint: no step has been done."""
    job = make_job(services={"t": make_titan()})
    schedule = job.schedule.model_copy(update={"restarts": restarts})
    job = job.model_copy(update={"schedule": schedule})
    begun: list[int | None] = []
    events: list[dict[str, Any]] = []

    def outcome(this: Any) -> launch.Outcome:
        begun.append(this.resume)
        if len(begun) == 2:
            return launch.Outcome(code=0, status="done")
        return launch.Outcome(**FAILED, service="t", at_start=at_start)

    monkeypatch.setattr(launch, "_outcome", outcome)
    assert launch.run(job, tmp_path / "run", readers=[events.append]) == code
    assert begun == [None] * (2 if code == 0 else 1)
    told = [event["text"] for event in events if event["kind"] == "notice"]
    assert told == [
        f"{FAILED['message']}; the run restarts from its beginning (0 restarts left)"
    ] * (code == 0)
    (end,) = (event for event in events if event["kind"] == "run.end")
    assert "at_start" not in end


def test_a_service_that_died_while_it_started_is_known_by_its_error() -> None:
    group = BaseExceptionGroup("g", [StartError("killed", service="t")])
    assert launch._outcome_of(group).at_start
    assert not launch._outcome_of(RunError("killed", service="t")).at_start


@pytest.mark.parametrize(
    ("number", "saved", "code"),
    [(signal.SIGTERM, True, 75), (signal.SIGTERM, False, 130), (signal.SIGINT, True, 130)],
)
def test_preemption_has_an_exit_code_of_its_own(
    number: int, saved: bool, code: int, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints/step-2").mkdir(parents=True)
    (tmp_path / "checkpoints/step-2" / ("controller.json" if saved else "x")).write_text("{}")
    interrupt = Interrupt(EventLog(), tmp_path, lambda: None)
    interrupt(number)
    assert interrupt.code() == code


def test_a_run_by_a_call_leaves_what_one_of_the_command_does(
    make_job: Any, make_titan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(this: Any) -> launch.Outcome:
        row = {"step": 1, "loss": 0.5, "reward_mean": None, "step_s": 1.0}
        this.events.emit("metrics", **row)
        return launch.Outcome(code=0, status="done")

    monkeypatch.setattr(launch, "_outcome", outcome)
    (tmp_path / "out/inputs").mkdir(parents=True)
    (tmp_path / "out/inputs/rows.jsonl").write_text("{}")
    job, run = make_job(services={"t": make_titan()}).sealed(), tmp_path / "run"
    assert launch.run(job, run, job_dir=tmp_path / "out") == 0
    assert read_job(run) == job
    assert json.loads((run / "metrics.jsonl").read_text())["loss"] == 0.5
    assert (run / "inputs/rows.jsonl").read_text() == "{}"
    assert (run / "forge.lock").exists()
    assert "</html>" in (run / "report.html").read_text()
    listed = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert (listed.exit_code, "done" in listed.stdout) == (0, True), listed.output
