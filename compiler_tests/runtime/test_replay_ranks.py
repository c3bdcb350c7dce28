"""Where the trainer of a replay runs."""

from __future__ import annotations

from typing import Any

import pytest

from forgedsl.lower import job as spec
from forgedsl.runtime.replay import fit_degrees, trainer_only


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
