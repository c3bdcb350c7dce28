"""Models of random weights: what their folder needs, and who has the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_family_logits import printed

from forgedsl.errors import LaunchError
from forgedsl.job.parts import Arch
from forgedsl.lower import job as spec
from forgedsl_runtime.models import resolve_model
from forgedsl_runtime.services.titan.upstream.draws import Initial, WholeDraws, initialize

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
    with WholeDraws(torch.device("cpu")):
        fill(DTensor.from_local(part, last_of_two, [Shard(0)], run_check=False))
    assert torch.equal(part, whole[4:])


def test_weights_in_bf16_are_those_in_f32_rounded() -> None:
    """In bf16 this one would compute with rounded numbers."""

    class Layer(torch.nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(40, 30, dtype=dtype))

        def init_states(self, buffer_device: Any) -> None:
            pass

    found = [Layer(dtype) for dtype in (torch.float32, torch.bfloat16)]
    weights = [Initial("weight", torch.Size([40, 30]), torch.nn.init.trunc_normal_)]
    for layer in found:
        torch.manual_seed(3)
        initialize(layer, weights, torch.device("cpu"), offload=False)
    assert torch.equal(found[0].weight.bfloat16(), found[1].weight)
    assert found[0].weight.std() > 0.5


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By family and case: names of weights that are not those of a trainer, rounded."""
    pytest.importorskip("torchtitan")
    return printed("random_parity.py", str(tmp_path_factory.mktemp("random")))


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "glm4_moe"])
@pytest.mark.parametrize(
    "case", ["reference", "adapters", "adapters in bf16", "recomputed", "value head", "bf16"]
)
def test_services_of_a_model_have_the_same_random_weights(
    unequal: Any, family: str, case: str
) -> None:
    """A trainer's weights are in f32, those of its reference in bf16."""
    assert unequal[family][case] == []


def test_a_model_of_another_seed_has_other_weights(unequal: Any) -> None:
    assert "model.layers.1.mlp.down_proj.weight" in unequal["qwen3"]["another seed"]
