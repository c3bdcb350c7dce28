"""Ranks that share the experts of a model take the steps that one rank takes."""

from __future__ import annotations

import asyncio
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from conftest import job_of, titan
from safetensors.torch import load_file
from test_trainer_ranks import EPS, recorded_batch, recorded_loss, same_step, trainer_of, two_steps

from forgedsl.job.parts import Arch
from forgedsl.lower import job as spec

DIMS = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 32, "vocab": 64,
    "experts": 8, "active": 3,
}  # fmt: skip
"""two layers of experts"""
MODEL = spec.Model(
    source=spec.RandomModel(seed=3),
    arch=Arch(family="qwen3_moe", dims=DIMS),
    tokenizer=spec.LocalModel(path="forgedsl:models/tiny_math", sha256=""),
    dtype="f32",
    context=256,
)
GLM = {
    **DIMS, "layers": 3, "rope_theta": 1e4, "route_scale": 2.5, "qk_norm": True, "dense_ffn": 96,
    "tied": True, "context": 256,
}  # fmt: skip
"""a dense layer, and two with a shared expert"""
ADDITIONS = 3 * (4 * 64 + 64 + 4 * 32 + 8) + 2 * 64 + 64 + 24 * 14
"""of the recorded batch through these models: `tolerance.of_model` written out, with the router"""
NEAR = tolerance.near(torch.float32, ADDITIONS)
CORRECTION = "mlp.gate.e_score_correction_bias"


def of(degrees: dict[str, int], model: spec.Model = MODEL) -> tuple[spec.Job, int]:
    """A job whose trainer is spread so, and its processes; `ep` takes none of its own."""
    procs = math.prod(size for name, size in degrees.items() if name != "ep")
    changes = {
        "parallel": spec.TitanParallel(**degrees),
        "batch": spec.BatchShape(seq_len=32, rows=2),
    }
    trainer = titan(procs=procs, eps=EPS).model_copy(update=changes)
    until = spec.Schedule(mode="sync", steps=5, prompts=1, credits=1, age_bound=0)
    job = job_of(services={"trainer": trainer}, losses={"recorded": recorded_loss()},
                 models={"policy": model}, schedule=until)  # fmt: skip
    return job, procs


async def asked(folder: Path, mesh: Any) -> Any:
    """Log-probs, and the weights of an export."""
    await mesh.first("export", str(folder / "export"), "f32")
    (file,) = (folder / "export").glob("*.safetensors")
    return await mesh.first("logprobs", recorded_batch().samples[:8]), load_file(file)


def run(
    folder: Path, degrees: dict[str, int], resume: int | None = None, model: spec.Model = MODEL
) -> Any:
    folder.mkdir(exist_ok=True)
    return asyncio.run(two_steps(*of(degrees, model), folder, resume, partial(asked, folder)))


def glm(folder: Path) -> spec.Model:
    """A model with correction biases, as transformers writes it."""
    from family_parity import published

    published("glm4_moe", GLM, folder)
    source = spec.LocalModel(path=str(folder), sha256="")
    return MODEL.model_copy(update={"source": source, "arch": None})


def whole(results: Any) -> None:
    """Generators get a layer's experts as two tensors."""
    name = "model.layers.1.mlp.experts"
    for _, weights in results:
        assert weights[f"{name}.gate_up_proj"].shape == (8, 2 * 32, 64)
        assert weights[f"{name}.down_proj"].shape == (8, 64, 32)
        assert not [key for key in weights if key.startswith(f"{name}.0")]


def agree(one: Any, several: Any) -> None:
    for (a, weights_a), (b, weights_b) in zip(one, several, strict=True):
        same_step(a, b)
        assert 1.0 < b.experts_load <= 8 / 3  # filled rows are counted, and differ
        adam = spec.Optimizer(lr=2e-4, eps=EPS)
        close = tolerance.adam(torch.float32, ADDITIONS, updates=a.version,
                               gradient=adam.max_norm, optimizer=adam)  # fmt: skip
        assert weights_b.keys() == weights_a.keys()
        for name, value in weights_a.items():
            torch.testing.assert_close(weights_b[name], value, **close)


@pytest.fixture(
    scope="module", params=["qwen3_moe", pytest.param("glm4_moe", marks=pytest.mark.full)]
)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one rank does, its folder, and its model."""
    folder = tmp_path_factory.mktemp("one")
    model = MODEL if request.param == "qwen3_moe" else glm(tmp_path_factory.mktemp("m") / "glm")
    return *run(folder, {}, model=model), folder, model


def test_one_rank_exports_every_expert_and_counts_their_tokens(one: Any) -> None:
    facts, results, _, model = one
    exported = facts["asked"][1]
    experts = [name for name in exported if ".mlp.experts." in name]
    assert len(experts) == 2 * 8 * 3
    assert exported["model.layers.1.mlp.experts.7.up_proj.weight"].shape == (32, 64)
    whole(results)
    fused = results[-1][1]["model.layers.1.mlp.experts.gate_up_proj"]
    parts = [exported[f"model.layers.1.mlp.experts.7.{n}_proj.weight"] for n in ("gate", "up")]
    assert fused[7].equal(torch.cat(parts))
    if model.arch is None:
        biases = {name for name in exported if name.endswith(CORRECTION)}
        assert biases == {f"model.layers.{i}.{CORRECTION}" for i in (1, 2)}
        (file,) = Path(model.source.path).glob("*.safetensors")
        for name in biases:  # nothing trains them
            as_loaded = load_file(file)[name]
            assert as_loaded.abs().max() > 0.01
            assert all(weights[name].equal(as_loaded) for _, weights in results)
            assert exported[name].equal(as_loaded)
    assert all(1.0 < result.experts_load <= 8 / 3 for result, _ in results)


DEGREES = [
    pytest.param({"dp_shard": 2, "ep": 2}, id="ep 2", marks=pytest.mark.full),
    pytest.param({"dp_shard": 2}, id="fsdp alone", marks=pytest.mark.deep),
    pytest.param({"dp_shard": 2, "cp": 2, "ep": 4}, id="ep 4 of rows shared",
                 marks=pytest.mark.deep),
    pytest.param({"dp_shard": 4, "ep": 2}, id="ep 2 of 4", marks=pytest.mark.deep),
    pytest.param({"tp": 2, "ep": 2}, id="ep 2 of tp", marks=pytest.mark.deep),
    pytest.param({"tp": 2}, id="tp alone", marks=pytest.mark.deep),
    pytest.param({"dp_replicate": 2, "dp_shard": 2, "ep": 2}, id="ep 2, replicas",
                 marks=pytest.mark.deep),
]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("degrees", DEGREES)
def test_ranks_agree_with_one_which_goes_on_from_their_checkpoint(
    tmp_path: Path, one: Any, degrees: dict[str, int]
) -> None:
    facts, results, folder, model = one
    told, several = run(tmp_path / "several", degrees, model=model)
    assert told["parameters"] == facts["parameters"]
    agree(results, several)
    for a, b in zip(told["asked"], facts["asked"], strict=True):
        torch.testing.assert_close(a, b, rtol=NEAR["rel"], atol=2e-4 * 2 * NEAR["rel"] + 1e-5)
    # a checkpoint of these goes on on one rank as one of its own does
    shutil.copytree(folder / "checkpoints", tmp_path / "own" / "checkpoints")
    _, again = run(tmp_path / "several", {}, 2, model=model)
    _, own = run(tmp_path / "own", degrees, 2, model=model)
    agree(again, own)
    assert [result.version for result, _ in again] == [3, 4]


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("degrees", [{"pp": 2}, {"pp": 2, "dp_shard": 2, "ep": 2}])
def test_stages_have_the_experts_of_their_layers(
    tmp_path: Path, one: Any, degrees: dict[str, int]
) -> None:
    source = spec.LocalModel(path=str(one[2] / "export"), sha256="")
    model = spec.Model(source=source, dtype="f32", context=256)
    _, whole_model = run(tmp_path / "whole", {}, model=model)
    _, stages = run(tmp_path / "stages", degrees, model=model)
    agree(whole_model, stages)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_ranks_load_the_files_of_one(tmp_path: Path, one: Any) -> None:
    """A published model has a tensor per expert: each rank reads those that it has."""
    facts, _, folder, _ = one
    source = spec.LocalModel(path=str(folder / "export"), sha256="")
    model = spec.Model(source=source, dtype="f32", context=256)

    async def measured() -> Any:
        async with trainer_of(*of({"dp_shard": 2, "ep": 2}, model), tmp_path) as (mesh, _):
            return await mesh.first("logprobs", recorded_batch().samples[:8])

    for a, b in zip(facts["asked"][0], asyncio.run(measured()), strict=True):
        assert b == pytest.approx(a, **NEAR)
