"""A trainer of adapters computes the log-probs of the frozen model that they are added to.

They are those of a reference with processes of its own, before and after steps, for every way to
split the trainer; and a trainer that is asked for them trains as one that is not.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import tolerance
import torch
from test_trainer_experts import ADDITIONS, DIMS, MODEL
from test_trainer_ranks import published, recorded_batch, recorded_loss, trainer_of

from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.services.trainer import TrainerClient

pytestmark = pytest.mark.timeout(300)
LORA = spec.Lora(rank=4, alpha=16.0)
TEMPERATURE = 0.7
"""of the reference; that of the trainer is 1"""
SPLITS = {
    "one rank": {}, "dp_shard": {"dp_shard": 2}, "cp": {"cp": 2}, "tp": {"tp": 2},
    "pp": {"pp": 2},
}  # fmt: skip
CLOSE = tolerance.close(torch.float32, tolerance.of_shipped("tiny_math", length=64), size=10.0)
"""log-probs of the trainer's layers and of a reference's, which joins queries, keys and values"""


def job_of(
    make_job: Any, make_titan: Any, split: dict[str, int], loss: spec.Loss, **changes: Any
) -> spec.Job:
    """A job with a trainer, the reference that it serves, and one with processes of its own."""
    procs = max(split.values(), default=1)
    trainer = make_titan(procs=procs).model_copy(
        update={"lora": LORA, "parallel": spec.TitanParallel(**split)}
    )
    frozen = make_titan().model_copy(update={"optimizer": None, "temperature": TEMPERATURE})
    served = frozen.model_copy(update={"served_by": "trainer", "mesh": trainer.mesh})
    services = {"trainer": trainer, "reference": served, "apart": frozen}
    job: spec.Job = make_job(services=services, losses={"recorded": loss}, **changes)
    return job


def client(mesh: Any) -> TrainerClient:
    return TrainerClient(mesh, base_at=TEMPERATURE)


def samples() -> list[Sample]:
    return recorded_batch().samples


def flat(found: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for each in found for value in each])


@asynccontextmanager
async def frozen_of(job: spec.Job, folder: Path) -> Any:
    """The reference with a process of its own."""
    from forgedsl_runtime.models import resolve_model
    from forgedsl_runtime.rendezvous import rendezvous_store
    from forgedsl_runtime.services.titan.frozen import ReferenceModel
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    store = rendezvous_store()
    mesh = Mesh.spawn(
        service="apart", origin="x.forge:1:1", name="apart", size=1, actor=ReferenceModel,
        args=(job, "apart", str(resolve_model(job, "policy", folder, folder))),
        kwargs={"world": 1, "threads": 1, "rendezvous": (store.host, store.port)},
        start=bootstrap({"OMP_NUM_THREADS": "1"}, folder / "apart", "cpu"), logs=folder / "apart",
    )  # fmt: skip
    try:
        await mesh.first("setup", str(folder), uuid4().hex, None)
        yield mesh
    finally:
        await mesh.stop()


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """Log-probs by a reference with a process of its own."""
    from conftest import job_of as make_job
    from conftest import titan as make_titan

    pytest.importorskip("torchtitan")
    job = job_of(make_job, make_titan, {}, recorded_loss())
    return asyncio.run(ask_apart(job, tmp_path_factory.mktemp("apart")))


async def ask_apart(job: spec.Job, folder: Path) -> torch.Tensor:
    async with frozen_of(job, folder) as mesh:
        return flat(await TrainerClient(mesh).logprobs(samples()))


async def history(job: spec.Job, folder: Path, *, asked: bool) -> dict[str, Any]:
    """A step, an update of two passes, and a step; log-probs of the reference between all of
    them, if they are `asked` for."""
    found: dict[str, Any] = {"base": [], "results": []}
    procs = job.services["trainer"].mesh.procs
    batch, few = recorded_batch(), recorded_batch().samples[:7]

    async with trainer_of(job, procs, folder) as (mesh, facts):
        found["facts"] = facts

        async def ask() -> None:
            if asked:
                found["base"].append(flat(await client(mesh).logprobs(samples())))

        found["policy"] = [flat(await mesh.first("logprobs", samples()))]
        await ask()
        found["results"].append(await mesh.first("step", batch, "recorded"))
        await ask()
        found["results"].append(await mesh.first("accumulate", samples(), "recorded", None))
        await ask()
        found["results"].append(await mesh.first("accumulate", few, "recorded", None))
        await ask()
        found["results"].append(await mesh.first("apply", None))
        await ask()
        await mesh.first("save", 2)
        await mesh.first("saved")
        last, _ = await asyncio.gather(mesh.first("step", batch, "recorded"), ask())
        found["results"].append(last)
        found["weights"] = await published(mesh)
        found["policy"].append(flat(await mesh.first("logprobs", samples())))
        return found


@pytest.mark.parametrize(
    "split",
    [name if name == "one rank" else pytest.param(name, marks=pytest.mark.full) for name in SPLITS],
)
def test_a_trainer_is_its_own_reference(
    tmp_path: Path, make_job: Any, make_titan: Any, apart: torch.Tensor, split: str
) -> None:
    job = job_of(make_job, make_titan, SPLITS[split], recorded_loss())
    digests = its_own_reference(tmp_path, job, apart, CLOSE)
    assert len(digests) == 35


@pytest.mark.full
@pytest.mark.parametrize("source", ["random", "files"])
def test_ranks_that_share_experts_are_their_own_reference(
    tmp_path: Path, make_job: Any, make_titan: Any, source: str
) -> None:
    """The reference with a process of its own draws the same random weights."""
    split = {"dp_shard": 2, "ep": 2}
    model = MODEL if source == "random" else from_files(tmp_path / "model")
    job = job_of(make_job, make_titan, split, recorded_loss(), models={"policy": model})
    (tmp_path / "apart").mkdir()
    apart = asyncio.run(ask_apart(job, tmp_path / "apart"))
    close = tolerance.close(torch.float32, ADDITIONS, size=10.0)
    digests = its_own_reference(tmp_path, job, apart, close)
    # random weights have no files that they could be compared with
    assert ("model.layers.1.mlp.experts.7.up_proj.weight" in digests) == (source == "files")


def from_files(folder: Path) -> spec.Model:
    """The mixture, as transformers writes it."""
    from family_parity import published as write

    write("qwen3_moe", DIMS | {"context": 256}, folder)
    local = spec.LocalModel(path=str(folder), sha256="")
    return MODEL.model_copy(update={"source": local, "arch": None})


def its_own_reference(
    tmp_path: Path, job: spec.Job, apart: torch.Tensor, close: dict[str, float]
) -> Any:
    """Check the trainer of a job against `apart`, the log-probs of a reference with a process of
    its own; return the digests of the weights that it reported, if any."""
    folders = [tmp_path / name for name in ("asked", "plain")]
    for folder in folders:
        folder.mkdir()
    found = asyncio.run(history(job, folders[0], asked=True))
    first, *others = found["base"]
    assert len(others) == 5
    assert all(torch.equal(each, first) for each in others)
    torch.testing.assert_close(first, apart, **close)
    before, after = found["policy"]
    assert (after - before).abs().max() > 0.005, "the adapters have learnt something"
    assert found["facts"].get("digests_of", ("reference",)) == ("reference",)
    plain = asyncio.run(history(job, folders[1], asked=False))
    assert plain["base"] == []
    assert plain["results"] == found["results"]
    assert plain["weights"].keys() == found["weights"].keys()
    for name, value in plain["weights"].items():
        assert torch.equal(value, found["weights"][name]), name
    return found["facts"].get("digests", {})
