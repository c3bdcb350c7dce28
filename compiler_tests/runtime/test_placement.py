"""Every replica sees the GPUs that the plan gave it, and all of its ranks see the same ones."""

from __future__ import annotations

import os
from typing import Any

import pytest

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec


def two_replicas() -> spec.VllmService:
    places = tuple(
        spec.Place(replica=replica, host=0, gpus=gpus)
        for replica, gpus in ((0, (4, 5)), (1, (6, 7)))
    )
    return spec.VllmService(
        model="policy",
        mesh=spec.Mesh(name="gen", procs=2, gpus=1, replicas=2, device="gpu", places=places),
        dtype="bf16",
        parallel=spec.VllmParallel(tp=2),
        sampling=spec.Sampling(max_tokens=4),
    )


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        (None, ["4,5", "6,7"]),
        ("7,6,5,4,3,2,1,0", ["3,2", "1,0"]),
        ("0,1,2,3,GPU-a,GPU-b,9,8", ["GPU-a,GPU-b", "9,8"]),
    ],
)
def test_replicas_see_the_gpus_of_the_plan(
    mask: str | None, wanted: list[str], make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forgedsl_runtime import meshes

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    monkeypatch.setattr(meshes, "_num_gpus", lambda: 8)
    spots = meshes.place(make_job(services={"generator": two_replicas()}))["generator"]
    seen = [meshes._environment(spot)["CUDA_VISIBLE_DEVICES"] for spot in spots]
    assert seen == wanted


def test_a_host_with_fewer_gpus_is_refused(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from forgedsl_runtime import meshes

    monkeypatch.setattr(meshes, "_num_gpus", lambda: 2)
    with pytest.raises(LaunchError, match="GPUs 0 to 7 of this host, but it has 2"):
        meshes.place(make_job(services={"generator": two_replicas()}))


def test_threads_are_those_that_a_service_asks_for(make_job: Any, make_titan: Any) -> None:
    from forgedsl_runtime import meshes

    service = make_titan()
    asks = service.model_copy(update={"mesh": service.mesh.model_copy(update={"cpus": 3})})
    (spot,) = meshes.place(make_job(services={"t": asks}))["t"]
    assert meshes._environment(spot)["OMP_NUM_THREADS"] == "3"


def test_processes_and_tests_ask_mkl_for_the_same_bits(
    make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forgedsl_runtime import meshes

    (spot,) = meshes.place(make_job(services={"t": make_titan()}))["t"]
    assert meshes._environment(spot)["MKL_CBWR"] == os.environ["MKL_CBWR"]  # of conftest.py
    monkeypatch.delenv("MKL_CBWR")
    assert meshes._environment(spot)["MKL_CBWR"] == meshes.SAME_BITS
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert meshes._environment(spot)["MKL_CBWR"] == "COMPATIBLE"
