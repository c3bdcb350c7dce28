"""What a run will write is compared with what is free before it is started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import titan

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime import disk_space, meshes
from forgedsl_runtime.disk_space import check_room
from forgedsl_runtime.services import real_backend

STEP = spec.Node(
    id="train/step", name="step", op="step", target="trainer", inputs=(), level="batch", origin=""
)
PARAMS = 597_056


@pytest.fixture
def job(make_job: Any) -> spec.Job:
    job: spec.Job = make_job(services={"trainer": titan()}, nodes=(STEP,))
    return job


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))


def test_weights_and_moments_of_all_kept_checkpoints_have_to_fit(
    job: spec.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job.model_copy(update={"checkpoint": spec.Checkpoint(every=1, keep=2, export="out")})
    need = 3 * 12 * PARAMS + 4 * PARAMS
    free(monkeypatch, need)
    words = "22.8 MiB free, 3 checkpoints of 6.8 MiB and an export of 2.3 MiB"
    assert check_room(job, tmp_path, tmp_path, tmp_path / "run") == words
    free(monkeypatch, need - 1)
    with pytest.raises(LaunchError, match=r"an export of 2\.3 MiB in .*run: "):
        check_room(job, tmp_path, tmp_path, tmp_path / "run")


def test_a_resumed_run_has_its_checkpoints_already(
    job: spec.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 0)
    (tmp_path / "checkpoints/step-4").mkdir(parents=True)
    (tmp_path / "checkpoints/step-4/controller.json").write_text("{}")
    assert check_room(job, tmp_path, tmp_path, tmp_path) == "0.0 MiB free"


def test_a_run_without_room_starts_no_actor(
    job: spec.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 0)
    monkeypatch.setattr(meshes, "run_actors", lambda *_: pytest.fail("actors are started"))
    scratch = SimpleNamespace(temp=tmp_path)
    this: Any = SimpleNamespace(
        job=job, job_dir=tmp_path, run_dir=tmp_path, scratch=scratch, trial=None
    )
    fleet: Any = None
    with pytest.raises(LaunchError, match="not enough disk space for 1 checkpoint of "):
        asyncio.run(real_backend.RealBackend().prepare(this, fleet))


@pytest.mark.parametrize(
    ("steps", "checkpoint", "count"),
    [
        (50, spec.Checkpoint(every=10, keep=2), "3 checkpoints"),
        (15, spec.Checkpoint(every=10, keep=2), "2 checkpoints"),
        (50, spec.Checkpoint(every_s=600.0, keep=1), "2 checkpoints"),
        (1, spec.Checkpoint(every_s=600.0, keep=4), "1 checkpoint "),
        (None, spec.Checkpoint(every=10, keep=4), "5 checkpoints"),
    ],
)
def test_as_many_checkpoints_are_counted_as_can_be_there_at_a_time(
    job: spec.Job, tmp_path: Path, steps: int | None, checkpoint: spec.Checkpoint, count: str
) -> None:
    schedule = job.schedule.model_copy(update={"steps": steps})
    job = job.model_copy(update={"checkpoint": checkpoint, "schedule": schedule})
    assert count in check_room(job, tmp_path, tmp_path, tmp_path / "run")
