"""One recorded batch on one rank and on two ranks that share the vocabulary: the same step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_trainer_ranks import EPS, recorded_loss, same_step, same_weights, two_steps

from forgedsl.lower import job as spec


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("lora", "cp"),
    [
        pytest.param(None, 1, id="weights", marks=pytest.mark.full),
        pytest.param(spec.Lora(rank=4, alpha=16.0), 1, id="adapters", marks=pytest.mark.deep),
        pytest.param(None, 2, id="rows too", marks=pytest.mark.deep),
    ],
)
def test_one_rank_and_two_that_share_the_vocabulary(
    tmp_path: Path, make_job: Any, make_titan: Any, lora: spec.Lora | None, cp: int
) -> None:
    loss = recorded_loss()

    def run(tp: int, cp: int, folder: Path) -> Any:
        folder.mkdir()
        procs = tp * cp
        trainer = make_titan(procs=procs, eps=EPS)
        trainer = trainer.model_copy(
            update={"parallel": spec.TitanParallel(tp=tp, cp=cp), "lora": lora}
        )
        job = make_job(services={"trainer": trainer}, losses={"recorded": loss})
        return asyncio.run(two_steps(job, procs, folder))[1]

    one, two = run(1, 1, tmp_path / "one"), run(2, cp, tmp_path / "two")
    for (a, weights_a), (b, weights_b) in zip(one, two, strict=True):
        assert b.kernel == a.kernel
        same_step(a, b)
        same_weights(weights_a, weights_b, updates=a.version)
