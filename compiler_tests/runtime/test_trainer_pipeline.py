"""One recorded batch on one rank and on ranks that each have some of the layers: the same step."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from safetensors.torch import load_file, save_file
from test_trainer_ranks import (
    ADDITIONS,
    EPS,
    published,
    recorded_batch,
    recorded_loss,
    same_step,
    same_weights,
    trainer_of,
    two_steps,
)

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.job.parts import Arch
from forgedsl.lower import job as spec
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime.data_types import Batch


def untied_model(folder: Path) -> spec.Model:
    """The shipped model with a head of its own."""
    shutil.copytree(str(files("forgedsl") / "pipelines/models/tiny_math"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    embedding = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = embedding + 0.1 * embedding.roll(1, 0)
    save_file(weights, file)
    return spec.Model(source=spec.LocalModel(path=str(folder), sha256=""), dtype="f32", context=256)


def of_values() -> spec.Loss:
    functions, sources = api.load_functions("std/rl")
    loss = lower_loss(functions["bradley_terry"], Reporter(), sources)
    assert loss is not None
    return loss


async def asked(folder: Path, mesh: Any) -> Any:
    """Log-probs and losses without gradients, the weights of an export, and a step by a loss that
    reads the value head alone, with the weights after it."""
    samples = recorded_batch().samples[:8]
    logprobs = await mesh.first("logprobs", samples)
    held = await mesh.first("evaluate", samples, "recorded")
    await mesh.first("export", str(folder / "export"), "f32")
    (file,) = (folder / "export").glob("*.safetensors")
    exported = load_file(file)
    told = await mesh.first("step", Batch(samples=samples), "bradley_terry")
    values = await mesh.first("values", samples)
    return logprobs, held, exported, (told.loss, told.grad_norm), values, await published(mesh)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("parallel", "tied"),
    [
        pytest.param(spec.TitanParallel(pp=2), True, id="tied"),
        pytest.param(
            spec.TitanParallel(pp=2, dp_shard=2),
            False,
            id="untied, sharded",
            marks=pytest.mark.deep,
        ),
        pytest.param(
            spec.TitanParallel(pp=2, cp=2), True, id="tied, rows shared", marks=pytest.mark.deep
        ),
    ],
)
def test_stages_take_the_step_of_one_rank_and_resume_each_other(
    tmp_path: Path, make_job: Any, make_titan: Any, parallel: spec.TitanParallel, tied: bool
) -> None:
    models = {} if tied else {"models": {"policy": untied_model(tmp_path / "untied")}}

    def run(how: spec.TitanParallel, folder: Path, resume: int | None = None) -> Any:
        folder.mkdir(exist_ok=True)
        procs = how.pp * how.dp_shard * how.cp
        # six microbatches a step, so that 1F1B has a steady state
        service = make_titan(procs=procs, eps=EPS).model_copy(
            update={
                "parallel": how, "batch": spec.BatchShape(seq_len=32, rows=2), "value_head": True
            }
        )  # fmt: skip
        losses = {"recorded": recorded_loss(), "bradley_terry": of_values()}
        until = spec.Schedule(mode="sync", steps=5, prompts=1, credits=1, age_bound=0)
        job = make_job(services={"trainer": service}, losses=losses, schedule=until, **models)
        return asyncio.run(two_steps(job, procs, folder, resume, partial(asked, folder)))

    one = spec.TitanParallel()
    facts, whole = run(one, tmp_path / "whole")
    told, split = run(parallel, tmp_path / "split")
    assert told["parameters"] == facts["parameters"]
    for a, b in zip(facts["asked"], told["asked"], strict=True):
        torch.testing.assert_close(b, a, **tolerance.close(torch.float32, ADDITIONS))
    _agree(whole, split)
    if parallel.cp > 1:  # whose ranks are those of dp_shard to a checkpoint
        return
    shutil.copytree(tmp_path / "split" / "checkpoints", tmp_path / "back" / "checkpoints")
    _, here = run(parallel, tmp_path / "split", resume=2)
    _, there = run(one, tmp_path / "back", resume=2)
    _agree(there, here)
    assert [result.version for result, _ in here] == [3, 4]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_stages_have_the_random_weights_of_one_rank(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    dims = {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 96,
            "vocab": 64, "tied": True}  # fmt: skip
    model = spec.Model(
        source=spec.RandomModel(seed=3), arch=Arch(family="qwen3", dims=dims), dtype="f32",
        context=256, tokenizer=spec.LocalModel(path="forgedsl:models/tiny_math", sha256=""),
    )  # fmt: skip

    async def weights(stages: int) -> dict[str, torch.Tensor]:
        folder = tmp_path / str(stages)
        folder.mkdir()
        service = make_titan(procs=stages).model_copy(
            update={"parallel": spec.TitanParallel(pp=stages), "lora": spec.Lora(rank=4, alpha=16)}
        )
        job = make_job(services={"trainer": service}, losses={"recorded": recorded_loss()},
                       models={"policy": model})  # fmt: skip
        async with trainer_of(job, stages, folder) as (mesh, _):
            return await published(mesh)

    one, two = (asyncio.run(weights(stages)) for stages in (1, 2))
    assert one.keys() == two.keys()
    assert [name for name, value in one.items() if not value.equal(two[name])] == []


def _agree(one: Any, two: Any) -> None:
    for (a, weights_a), (b, weights_b) in zip(one, two, strict=True):
        assert (a.kernel, a.lr) == (b.kernel, b.lr)
        same_step(a, b)
        same_weights(weights_a, weights_b, updates=a.version)
