"""A replay computes with the settings of its step, and says which were changed after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_job

from forgedsl_runtime.replay import changed_since, job_at_step

LR = "services.trainer.optimizer.lr"
FIRST = {"setting": LR, "before": 0.0002, "after": 0.0001}
SECOND = {"setting": LR, "before": 0.0001, "after": 0.00005}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    entries = [{"after_step": 4, "changes": [FIRST]}, {"after_step": 6, "changes": [SECOND]}]
    (tmp_path / "changes.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("step", "said"), [(1, [FIRST, SECOND]), (4, [FIRST, SECOND]), (5, [SECOND]), (7, [])]
)
def test_changes_after_the_step_are_said(run_dir: Path, step: int, said: list[Any]) -> None:
    assert changed_since(run_dir, step) == said


@pytest.mark.parametrize(("step", "lr"), [(4, 0.0002), (6, 0.0001), (7, 0.00005)])
def test_the_settings_of_the_step_are_in_force(run_dir: Path, step: int, lr: float) -> None:
    job = make_job()
    trainer = job.services["trainer"]
    optimizer = trainer.optimizer.model_copy(update={"lr": 0.00005})
    now = job.model_copy(
        update={"services": {"trainer": trainer.model_copy(update={"optimizer": optimizer})}}
    )
    before = job_at_step(now, changed_since(run_dir, step))
    assert before.services["trainer"].optimizer.lr == lr


def test_changes_written_as_text_are_read(tmp_path: Path) -> None:
    entry = {"after_step": 4, "changes": [f"{LR}: 0.0002 -> 0.0001"]}
    (tmp_path / "changes.jsonl").write_text(json.dumps(entry) + "\n")
    (found,) = changed_since(tmp_path, 3)
    assert (found["setting"], found["before"]) == (LR, 0.0002)


def test_what_the_step_does_not_read_is_left() -> None:
    data = {"setting": "datasets.sums.source.sha256", "before": "a", "after": "b"}
    assert job_at_step(make_job(), [data]).datasets == make_job().datasets


def test_a_run_without_changes_has_none(tmp_path: Path) -> None:
    assert changed_since(tmp_path, 1) == []


def test_a_change_of_ranks_changes_nothing_that_a_replay_computes(run_dir: Path) -> None:
    job = make_job()
    place = {"setting": "services.trainer.mesh.places.0.host", "before": 1, "after": None}
    assert job_at_step(job, [place]) == job
