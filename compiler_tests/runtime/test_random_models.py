"""Models of random weights: what their folder needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forgedsl.errors import LaunchError
from forgedsl.job.parts import Arch
from forgedsl.lower import job as spec
from forgedsl_runtime.models import resolve_model
from forgedsl_runtime.services.titan.upstream.draws import WholeDraws

TOKENIZER = Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"
"""of 48 tokens"""


@pytest.mark.parametrize("vocab", [48, 47])
def test_every_token_has_its_row(make_job: Any, tmp_path: Path, vocab: int) -> None:
    dims = {"layers": 1, "hidden": 32, "heads": 2, "vocab": vocab}
    model = spec.Model(
        source=spec.RandomModel(seed=1), dtype="f32", context=64,
        arch=Arch(family="qwen3", dims=dims),
        tokenizer=spec.LocalModel(path=str(TOKENIZER), sha256=""),
    )  # fmt: skip
    job = make_job(models={"m": model}, services={})
    if vocab == 48:
        assert (resolve_model(job, "m", tmp_path, tmp_path) / "config.json").is_file()
        return
    with pytest.raises(LaunchError, match="has vocab = 47, but its tokenizer has 48 tokens: write"):
        resolve_model(job, "m", tmp_path, tmp_path)


@pytest.fixture
def last_of_two() -> Iterator[Any]:
    """The second of two ranks, which has no other."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield dist.init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("fill", [torch.nn.init.normal_, torch.nn.init.trunc_normal_])
def test_a_rank_draws_its_part_of_the_whole(last_of_two: Any, fill: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    whole, part = torch.empty(8, 6), torch.empty(4, 6)
    torch.manual_seed(3)
    fill(whole)
    torch.manual_seed(3)
    with WholeDraws():
        fill(DTensor.from_local(part, last_of_two, [Shard(0)], run_check=False))
    assert torch.equal(part, whole[4:])
