"""A tiny model of each family: torchtitan's logits are transformers', and what it exports loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch

from forgedsl.families import registry
from forgedsl.sizes.params import num_params

HEADS = {"heads": 2, "kv_heads": 1, "head_dim": 32}  # vLLM's attention on CPU knows 32, 64, ...
STRETCHED = {"factor": 4.0, "low": 1.0, "high": 4.0, "original": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen2 untied": ("qwen2", {"tied": False, "head_dim": 16, "eps": 1e-3}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe plain sums": ("qwen3_moe", {"normalized": False, "tied": False}),
    "glm4_moe": ("glm4_moe", {"qk_norm": True, "route_scale": 2.5, "shared": 2}),
    "glm4_moe plain": ("glm4_moe", {"qkv_bias": False, "dense_first": 0}),
    "llama3": ("llama3", {"tied": False}),
    "llama3 stretched": ("llama3", {"rope_scaling": STRETCHED, "rope_theta": 5e5}),
    "smollm2": ("smollm2", {"heads": 3, "kv_heads": 1, "head_dim": 16, "hidden": 48}),
    "smollm3": ("smollm3", {"layers": 4, "no_rope_interval": 2, "tied": False}),
    "mistral": ("mistral", {}),
    "seed_oss": ("seed_oss", {}),
    "phi3": ("phi3", {}),
    "toy": ("llama3", {}),
    "served qwen2": ("qwen2", HEADS),
    "served qwen3": ("qwen3", HEADS),
    "served qwen3_moe": ("qwen3_moe", HEADS),
    "served glm4_moe": ("glm4_moe", HEADS | {"qk_norm": True, "route_scale": 2.5}),
    "served smollm3": ("smollm3", HEADS | {"layers": 4, "no_rope_interval": 2}),
    "served seed_oss": ("seed_oss", HEADS),
    "served phi3": ("phi3", HEADS),
    "served llama3": ("llama3", HEADS | {"tied": False, "rope_scaling": STRETCHED}),
}
SERVED = [label for label in MODELS if label.startswith("served")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def printed(script: str, *words: str) -> Any:
    """What a script beside this file found, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.fixture(scope="module")
def compared(folder: Path) -> Any:
    pytest.importorskip("torchtitan")
    return printed("family_parity.py", json.dumps({"folder": str(folder), "models": MODELS}))


def close_of(label: str) -> float:
    """How far logits may be apart, of the largest."""
    from family_parity import BATCH, dims_of

    config = registry.family(MODELS[label][0]).write(dims_of(*MODELS[label]))
    return tolerance.apart(torch.float32, tolerance.of_model(config, BATCH.shape[1]))


def test_every_family_is_compared() -> None:
    assert {family for family, _ in MODELS.values()} == {f.name for f in registry.FAMILIES}


@pytest.mark.parametrize("label", MODELS)
def test_logits_are_those_of_transformers(compared: dict[str, Any], label: str) -> None:
    assert compared[label]["spread"] > 0.1
    assert compared[label]["gap"] < close_of(label) * compared[label]["largest"]


@pytest.mark.parametrize("label", MODELS)
def test_an_export_gives_the_same_logits(compared: dict[str, Any], label: str) -> None:
    assert compared[label]["export"] < close_of(label) * compared[label]["largest"]


@pytest.mark.parametrize("label", MODELS)
def test_parameters_are_those_of_the_plan(compared: dict[str, Any], label: str) -> None:
    from family_parity import dims_of

    assert compared[label]["parameters"] == num_params(dims_of(*MODELS[label]))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_vllm_loads_what_is_exported(compared: dict[str, Any], folder: Path) -> None:
    pytest.importorskip("vllm")
    served = SERVED if os.environ.get("FORGE_DEEP") == "1" else SERVED[::3]
    gaps = printed("family_vllm.py", *(str(folder / label) for label in served))
    for label, found in gaps.items():
        assert found["gap"] < close_of(label) * compared[label]["largest"]
        assert found["reloaded"] == 0.0
        assert found["changed"] > 100 * close_of(label) * compared[label]["largest"]
        assert found["proved"][0] > 0
    assert list(gaps) == served
