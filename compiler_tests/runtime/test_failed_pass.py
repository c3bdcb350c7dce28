"""A pass that fails leaves nothing: a Session repeats the update, and it is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import job_of, titan
from failing_trainer import FailingTrainer
from test_trainer_ranks import published, recorded_batch, recorded_loss, trainer_of

from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Batch
from forgedsl_runtime.endpoints import ServiceError

LOST = "MemoryError: no room; the gradients of this update were discarded: repeat all its forward_b"
NONE = "there are no gradients: call forward_backward before optim_step"
PASSES = (recorded_batch().samples[:8], recorded_batch().samples[8:])
STEP = Batch(samples=PASSES[1], beside=[("recorded", PASSES[0]), ("recorded", PASSES[1])])
"""three losses, the last of which fails"""


async def update(mesh: Any) -> Any:
    for number, samples in enumerate(PASSES):
        await mesh.first("accumulate", samples, "recorded", None, number == 0)
    return await mesh.first("apply", None)


async def step(mesh: Any) -> Any:
    return await mesh.first("step", STEP, "recorded")


async def same(mesh: Any, call: Callable[[Any], Awaitable[Any]], expected: Any) -> None:
    """Do an update from the saved state: bit for bit what is expected."""
    found, weights = await call(mesh), await published(mesh)
    result, other = expected
    assert (found.loss, found.grad_norm) == (result.loss, result.grad_norm)
    assert all(other[name].equal(value) for name, value in weights.items())
    await mesh.call("restore", 1)


async def failed(mesh: Any, where: str) -> None:
    """The second pass of an update fails in its second microbatch."""
    await mesh.first("accumulate", PASSES[0], "recorded", None, True)
    await mesh.call("fail", 2, where)
    with pytest.raises(ServiceError, match=LOST):
        await mesh.first("accumulate", PASSES[1], "recorded", None)
    with pytest.raises(ServiceError, match=NONE):
        await mesh.first("apply", None)


async def history(job: spec.Job, procs: int, folder: Path) -> None:
    async with trainer_of(job, procs, folder, actor=FailingTrainer) as (mesh, _):
        await mesh.call("save", 1)
        await mesh.call("saved")
        expected = {}
        for call in (update, step):
            expected[call] = await call(mesh), await published(mesh)
            assert expected[call][0].grad_norm > 0
            await mesh.call("restore", 1)
        for where in ("forward", "backward"):
            await failed(mesh, where)
            await same(mesh, update, expected[update])
            for microbatch in (2, 5):
                await mesh.call("fail", microbatch, where)
                with pytest.raises(ServiceError, match=r"MemoryError: no room$"):
                    await step(mesh)
                await same(mesh, step, expected[step])
            await failed(mesh, where)
            await same(mesh, step, expected[step])


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("procs", "keeps"),
    [
        pytest.param(1, True, id="kept weights"),
        pytest.param(1, False, id="plain", marks=pytest.mark.full),
        pytest.param(2, True, id="two ranks, kept weights", marks=pytest.mark.full),
        pytest.param(2, False, id="two ranks", marks=pytest.mark.full),
    ],
)
def test_an_update_after_a_failed_pass_is_the_same(
    procs: int, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a step. Both ranks fail."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the module of the actor
    changes = {"keep_weights": keeps, "batch": spec.BatchShape(seq_len=32, rows=2)}
    trainer = titan(procs=procs, eps=1e-3).model_copy(update=changes)
    job = job_of(services={"trainer": trainer}, losses={"recorded": recorded_loss()})
    asyncio.run(history(job, procs, tmp_path))
