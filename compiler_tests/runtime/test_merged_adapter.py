"""`model { adapter = … }`: an adapter is merged into the weights of its base, once in a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.adapters import MADE_OF, merged_folder
from forgedsl_runtime.weight_folders import write_adapter

LAYER = "model.layers.0.self_attn.q_proj"
LORA = spec.Lora(rank=2, alpha=8)
SCALE = 4.0


def halves(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 6, dtype=dtype), torch.randn(4, 2, dtype=dtype)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    torch.manual_seed(0)
    weights = {f"{LAYER}.weight": torch.randn(4, 6), "model.norm.weight": torch.ones(4)}
    for number, (name, value) in enumerate(weights.items(), 1):  # two shards
        file = folder / f"model-0000{number}-of-00002.safetensors"
        save_file({name: value.to(torch.bfloat16)}, file)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    write_adapter({LAYER: halves()}, folder, base="tiny", lora=LORA)
    return folder


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


@pytest.mark.parametrize("wide", [False, True])
def test_only_its_layers_change(base: Path, adapter: Path, tmp_path: Path, wide: bool) -> None:
    found = merged_folder(base, adapter, tmp_path / "m", wide=wide, origin="policy")
    before, after = weights_of(base), weights_of(found)
    down, up = halves()
    wanted = before[f"{LAYER}.weight"].float() + SCALE * (up @ down)
    dtype = torch.float32 if wide else torch.bfloat16
    assert after[f"{LAYER}.weight"].dtype == dtype
    assert torch.equal(after[f"{LAYER}.weight"], wanted.to(dtype))
    assert torch.equal(after["model.norm.weight"], before["model.norm.weight"])
    assert (found / "config.json").read_text() == "{}"


def test_rank_stabilized_scale(base: Path, adapter: Path, tmp_path: Path) -> None:
    edited(adapter, use_rslora=True)
    found = merged_folder(base, adapter, tmp_path / "m", wide=True, origin="policy")
    down, up = halves()
    wanted = weights_of(base)[f"{LAYER}.weight"].float() + 8 / 2**0.5 * (up @ down)
    torch.testing.assert_close(weights_of(found)[f"{LAYER}.weight"], wanted)


def test_it_is_merged_once_and_again_after_a_cut(base: Path, adapter: Path, tmp_path: Path) -> None:
    found = merged_folder(base, adapter, tmp_path / "m", wide=True, origin="policy")
    mark = found / "mark"
    mark.write_text("")
    assert merged_folder(base, adapter, found, wide=True, origin="policy") == found
    assert mark.exists()
    (found / MADE_OF).unlink()
    merged_folder(base, adapter, found, wide=True, origin="policy")
    assert not mark.exists()
    mark.write_text("")
    write_adapter({LAYER: (2 * halves()[0], halves()[1])}, adapter, base="tiny", lora=LORA)
    merged_folder(base, adapter, found, wide=True, origin="policy")
    assert not mark.exists()


def edited(adapter: Path, **settings: object) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"use_dora": True}, "`use_dora` is true, which cannot be merged"),
        ({"modules_to_save": ["lm_head"]}, '`modules_to_save` is ["lm_head"], which cannot be'),
        ({"peft_type": "LOHA"}, '`peft_type` is "LOHA"'),
        ({"rank_pattern": {"q_proj": 4}}, '`rank_pattern` is {"q_proj": 4}'),
        ({"r": 3}, "is not matrix A or B of an adapter of rank 3"),
        ({"r": None}, "its files cannot be read"),
    ],
)
def test_another_kind_is_refused(
    base: Path, adapter: Path, tmp_path: Path, settings: dict[str, object], told: str
) -> None:
    edited(adapter, **settings)
    with pytest.raises(LaunchError) as refused:
        merged_folder(base, adapter, tmp_path / "m", wide=True, origin="policy")
    assert told in str(refused.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("layer", "columns", "told"),
    [
        ("model.layers.1.self_attn.q_proj", 6, "the model has no weight"),
        (LAYER, 5, "is 4 x 6 in the model and 4 x 5 in the adapter"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    base: Path, tmp_path: Path, layer: str, columns: int, told: str
) -> None:
    layers = {layer: (torch.ones(2, columns), torch.ones(4, 2))}
    write_adapter(layers, tmp_path / "other", base="tiny", lora=LORA)
    with pytest.raises(LaunchError, match="does not fit the model") as refused:
        merged_folder(base, tmp_path / "other", tmp_path / "m", wide=True, origin="policy")
    assert told in str(refused.value)
