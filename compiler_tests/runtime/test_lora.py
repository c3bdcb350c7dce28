"""Adapters: they start as nothing, learn while the weights stand still, and merge into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_parity import dims_of
from test_family_logits import close_of, printed
from test_publication import result, sync_node

from forgedsl.sizes.params import adapter_params
from forgedsl_runtime.guards import GuardError, UnchangedWeightsGuard

FAMILIES = ("qwen2", "llama3", "qwen3_moe", "glm4_moe")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchtitan")
    return printed("lora_parity.py", str(tmp_path_factory.mktemp("lora")))


@pytest.mark.parametrize("family", FAMILIES)
def test_new_adapters_change_nothing(found: Any, family: str) -> None:
    assert found[family]["start"] < close_of(family) * found[family]["largest"][0]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_adapters_learn(found: Any, family: str) -> None:
    first, last = found[family]["losses"]
    assert last < first - 0.2
    assert found[family]["moved"] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_trained_adapters_can_be_left_out(found: Any, family: str) -> None:
    """Then the model computes what it computed before the first update, bit for bit."""
    assert found[family]["left_out"] == found[family]["again"] == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_give_the_logits_of_transformers(found: Any, family: str) -> None:
    assert found[family]["merged"] < close_of(family) * found[family]["largest"][1]


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_parameters_are_trained_as_the_plan_counts(found: Any, family: str) -> None:
    assert found[family]["trained"] == adapter_params(dims_of(family, {}), 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_alone_and_its_base_are_the_merged_weights(found: Any, family: str) -> None:
    """Base + alpha / r * B A, as PEFT computes it, under the names that it reads."""
    from safetensors.torch import load_file

    folder = Path(found[family]["folder"])
    adapter = load_file(folder / "adapter/adapter_model.safetensors")
    config = json.loads((folder / "adapter/adapter_config.json").read_text("utf-8"))
    base, merged = (load_file(folder / f"{name}.safetensors") for name in ("base", "model"))
    layers = {n.removeprefix("base_model.model.").rpartition(".lora_")[0] for n in adapter}
    for layer in layers:
        down, up = (adapter[f"base_model.model.{layer}.lora_{x}.weight"] for x in "AB")
        wanted = base[f"{layer}.weight"].double() + (
            config["lora_alpha"] / config["r"] * (up.double() @ down.double())
        )
        assert merged[f"{layer}.weight"].double() == pytest.approx(wanted, abs=1e-6)
    changed = {name for name in merged if not torch.equal(merged[name], base[name])}
    assert changed == {f"{layer}.weight" for layer in layers}
    assert set(config["target_modules"]) == {layer.rpartition(".")[2] for layer in layers}


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2", "llama3"])
def test_vllm_reads_the_adapter(found: Any, family: str) -> None:
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    folder = Path(found[family]["folder"]) / "adapter"
    helper = PEFTHelper.from_local_dir(str(folder), max_position_embeddings=64)
    names = set(helper.target_modules)
    read = LoRAModel.from_local_checkpoint(
        str(folder), names, helper, lora_model_id=1, device="cpu", dtype=torch.float32
    )
    assert len(read.loras) == 2 * len(names)  # of two layers
    assert all(layer.lora_b.abs().sum() > 0 for layer in read.loras.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_that_are_not_merged_are_named_at_their_first_publication(
    found: Any, family: str
) -> None:
    merged, unmerged = found[family]["changed"]
    guard, node = UnchangedWeightsGuard(), sync_node()
    assert merged > 0.1
    assert guard.check(node, result(merged), "f32") == ""
    with pytest.raises(GuardError, match="none of the weights of generator"):
        guard.check(node, result(unmerged), "f32")
