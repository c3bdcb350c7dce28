"""What the first batch proves of a loss is the same on one rank and on several."""

from __future__ import annotations

import asyncio
from math import prod
from pathlib import Path
from typing import Any

import pytest
from test_trainer_ranks import EPS, recorded_batch, recorded_loss, trainer_of

from forgedsl.lower import job as spec

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
SPLITS: dict[str, dict[str, int]] = {
    "samples": {"dp_shard": 2}, "rows": {"cp": 2}, "vocabulary": {"tp": 2}, "layers": {"pp": 2},
    "samples and vocabulary": {"dp_shard": 2, "tp": 2},
}  # fmt: skip


def proved(folder: Path, make_job: Any, make_titan: Any, **degrees: int) -> list[dict[str, Any]]:
    """The lines of a trainer's first step."""
    procs = prod(degrees.values())
    parallel = spec.TitanParallel(**degrees)
    trainer = make_titan(procs=procs, eps=EPS).model_copy(update={"parallel": parallel})
    job = make_job(services={"trainer": trainer}, losses={"recorded": recorded_loss()})
    folder.mkdir()

    async def main() -> list[dict[str, Any]]:
        async with trainer_of(job, procs, folder) as (mesh, _):
            lines: list[dict[str, Any]] = (
                await mesh.first("step", recorded_batch(), "recorded")
            ).proofs
            return lines

    return asyncio.run(main())


KNOWN: list[list[dict[str, Any]]] = []


@pytest.fixture
def alone(
    tmp_path_factory: pytest.TempPathFactory, make_job: Any, make_titan: Any
) -> list[dict[str, Any]]:
    """The lines of one rank, found once."""
    if not KNOWN:
        KNOWN.append(proved(tmp_path_factory.mktemp("one") / "run", make_job, make_titan))
    return KNOWN[0]


@pytest.mark.parametrize("split", SPLITS)
def test_ranks_prove_together_what_one_rank_proves(
    split: str, alone: list[dict[str, Any]], tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    masks, loss = proved(tmp_path / "run", make_job, make_titan, **SPLITS[split])
    masks_alone, loss_alone = alone
    assert masks == masks_alone
    assert masks["holds"] is loss["holds"] is True
    for name in ("value_float64", "gradient_norm"):
        assert loss[name] == pytest.approx(loss_alone[name], rel=1e-5)
    assert (loss["tokens"], loss["kernel"]) == (loss_alone["tokens"], loss_alone["kernel"])
