"""The gap that the forward pass of training gives equals that of a forward pass of its own.

The first step has its own pass, the second takes the log-probs of training. The learning rate is so
small that no weight changes. One sample has no token that a loss scores.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainer_ranks import ADDITIONS, recorded_batch, recorded_loss, trainer_of
from tolerance import near

from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Batch


def batch_with_an_unscored_sample() -> Batch:
    batch = recorded_batch()
    batch.samples[5].mask[:] = [False] * len(batch.samples[5].mask)
    batch.sample_ages[:] = [i % 2 for i in range(len(batch.samples))]
    return batch


@pytest.mark.full
@pytest.mark.timeout(240)
def test_both_ways_give_the_same_gap(tmp_path: Path, make_job: Any, make_titan: Any) -> None:
    service = make_titan(procs=1).model_copy(update={"optimizer": spec.Optimizer(lr=1e-30)})
    job = make_job(services={"trainer": service}, losses={"recorded": recorded_loss()})

    async def two_gaps() -> list[dict[str, float]]:
        async with trainer_of(job, 1, tmp_path) as (mesh, _):
            batch = batch_with_an_unscored_sample()
            return [(await mesh.first("step", batch, "recorded")).gaps for _ in range(2)]

    own_pass, of_training = asyncio.run(two_gaps())
    assert sorted(own_pass) == ["gap/age_0", "gap/age_0_max", "gap/age_1", "gap/age_1_max"]
    assert of_training == pytest.approx(own_pass, **near(torch.float32, ADDITIONS))
    assert own_pass["gap/age_0"] > 0.1
