"""Where the trainer of a replay runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forgedsl.lower import job as spec
from forgedsl_runtime.replay import fit_degrees, trainer_only


@pytest.mark.full
def test_a_step_that_was_not_recorded_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches/step-1.json").write_text("{}")
    command = [sys.executable, "-m", "forgedsl", "replay", str(tmp_path), "--step", "99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"step 99 of {tmp_path} was not recorded (only 1)" in done.stderr
    assert "starting" not in done.stderr
    (tmp_path / "batches/step-1.json").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == f"forgec replay: {tmp_path} has made no step, so none is recorded\n"


@pytest.mark.parametrize(
    ("procs", "device", "gpus"), [(2, None, (0, 1)), (None, "cpu", ()), (None, None, (1,))]
)
def test_a_replay_has_gpus_for_its_ranks(
    make_job: Any, make_titan: Any, procs: int | None, device: Any, gpus: tuple[int, ...]
) -> None:
    place = spec.Place(replica=0, host=0, gpus=(1,))
    mesh = spec.Mesh(name="trainer", device="gpu", gpus=1, places=(place,))
    trainer = make_titan().model_copy(update={"mesh": mesh, "compile": True})
    job = make_job(services={"trainer": trainer})
    alone = trainer_only(job, "trainer", procs, device).services["trainer"]
    assert [each.gpus for each in alone.mesh.places] == ([gpus] if gpus else [])
    assert (alone.mesh.device, alone.compile) == (("cpu", False) if device else ("gpu", True))


@pytest.mark.parametrize(("procs", "found"), [(1, (1, 1)), (2, (1, 2)), (3, (3, 1)), (4, (2, 2))])
def test_a_replay_keeps_ranks_that_share_rows_where_they_divide(
    procs: int, found: tuple[int, int]
) -> None:
    parallel = fit_degrees(spec.TitanParallel(dp_shard=4, cp=2), procs)
    assert (parallel.dp_shard, parallel.cp) == found
