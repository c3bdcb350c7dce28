"""`memory.keep_weights`: weights are gathered once an update.

Results are equal bit for bit. Under tensor parallelism they are only close: there, gradients are
summed over microbatches before they are summed over ranks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_notice import hurried
from test_trainer_experts import agree, of
from test_trainer_ranks import published, recorded_batch, trainer_of, two_steps

from forgedsl.lower import job as spec


def job_of(degrees: dict[str, int], *, keeps: bool) -> tuple[spec.Job, int]:
    """A job with microbatches of two rows, and the number of its processes."""
    job, procs = of(degrees)
    changes = {"keep_weights": keeps}
    services = {name: each.model_copy(update=changes) for name, each in job.services.items()}
    return job.model_copy(update={"services": services}), procs


def both(degrees: dict[str, int], folder: Path) -> list[Any]:
    """Results and weights of two steps, without and with kept weights."""
    found = []
    for keeps in (False, True):
        where = folder / str(keeps)
        where.mkdir()
        found.append(asyncio.run(two_steps(*job_of(degrees, keeps=keeps), where))[1])
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param({}, id="one rank", marks=pytest.mark.full),
        pytest.param({"dp_shard": 2, "ep": 2}, id="ep 2", marks=pytest.mark.full),
        pytest.param({"dp_shard": 2}, id="fsdp", marks=pytest.mark.deep),
    ],
)
def test_kept_weights_change_no_bit(degrees: dict[str, int], tmp_path: Path) -> None:
    for (result, weights), (kept, kept_weights) in zip(*both(degrees, tmp_path), strict=True):
        assert (result.loss, result.grad_norm) == (kept.loss, kept.grad_norm)
        assert result.grad_norm > 0
        assert all(kept_weights[name].equal(value) for name, value in weights.items())


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_kept_weights_agree_under_tensor_parallelism(tmp_path: Path) -> None:
    agree(*both({"tp": 2}, tmp_path))


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_step_that_was_given_up_leaves_no_gradients(tmp_path: Path) -> None:
    job, procs = job_of({}, keeps=True)

    async def main() -> Any:
        async with trainer_of(job, procs, tmp_path) as (mesh, _):
            batch = recorded_batch()
            left = await hurried(mesh, batch)
            await mesh.call("abandon_before", None)
            done = await mesh.first("step", batch, "recorded")
            return left, done, await published(mesh)

    left, done, weights = asyncio.run(main())
    assert left.left
    other = tmp_path / "other"
    other.mkdir()
    _, ((plain, plain_weights), _) = asyncio.run(two_steps(*job_of({}, keeps=False), other))
    assert (done.loss, done.grad_norm) == (plain.loss, plain.grad_norm)
    assert all(plain_weights[name].equal(value) for name, value in weights.items())
