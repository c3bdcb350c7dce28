"""Ranks that share rows take the steps that one rank takes, whatever a loss looks at."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from conftest import job_of, titan
from test_trainer_ranks import (
    ADDITIONS,
    EPS,
    published,
    recorded_batch,
    same_step,
    same_weights,
    trainer_of,
)

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.lower import job as spec
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime.data_types import Batch

NEAR = tolerance.near(torch.float32, ADDITIONS)
LOSSES = ("dapo", "gspo", "dpo", "ppo_critic")
"""of tokens, of sequences, of pairs of sequences, of tokens and their values"""


def losses() -> dict[str, spec.Loss]:
    functions, sources = api.load_functions("std/rl")
    found = {name: lower_loss(functions[name], Reporter(), sources) for name in LOSSES}
    return {name: loss for name, loss in found.items() if loss is not None}


def batch(logprobs: list[list[float]]) -> Batch:
    """The recorded batch, with the fields of all losses; old log-probs are those of the model."""
    samples = []
    for sample, own in zip(recorded_batch().samples, logprobs, strict=True):
        noise = [0.1 * (v + 1.5) for v in sample.token_fields["behavior"]]
        ref = [v + n for v, n in zip(own, noise, strict=True)]
        fields = {
            "behavior": own, "proximal": own, "ref": ref,
            "old": noise, "ret": [2 * n for n in noise], "adv": noise,
        }  # fmt: skip
        samples.append(replace(sample, token_fields=fields))
    return Batch(samples=samples)


def of_sequences(whole: Batch) -> Batch:
    """The same, with one advantage for all tokens of a sequence."""
    return Batch(
        samples=[
            replace(s, token_fields={"behavior": s.token_fields["behavior"]}) for s in whole.samples
        ]
    )


def of_tokens(whole: Batch) -> Batch:
    return Batch(samples=[replace(s, sequence_fields={}) for s in whole.samples])


async def history(job: spec.Job, procs: int, folder: Path) -> Any:
    """Log-probs, then a step by each loss and the weights after it, and the values at the end."""
    async with trainer_of(job, procs, folder) as (mesh, _):
        samples = recorded_batch().samples
        told: list[Any] = [await mesh.first("logprobs", samples)]
        whole = batch(told[0])
        steps = []
        for name in LOSSES:
            given = (of_sequences if name in ("dapo", "gspo") else of_tokens)(whole)
            result = await mesh.first("step", given, name)
            steps.append((result, await published(mesh)))
        await mesh.call("save", 4)
        told.append(await mesh.first("values", samples))
        return steps, [[v for one in each for v in one] for each in told]


def ranks(degrees: dict[str, int], recomputed: Any = "none") -> tuple[spec.Job, int]:
    """A job with a value head whose trainer is spread so, and its processes."""
    procs = math.prod(degrees.values())
    changes = {"parallel": spec.TitanParallel(**degrees), "value_head": True,
               "activation_checkpoint": recomputed}  # fmt: skip
    trainer = titan(procs=procs, eps=EPS).model_copy(update=changes)
    return job_of(services={"trainer": trainer}, losses=losses()), procs


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one rank does."""
    return asyncio.run(history(*ranks({}), tmp_path_factory.mktemp("one")))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("degrees", "recomputed"),
    [
        pytest.param({"cp": 2, "dp_shard": 2}, "full", id="beside others", marks=pytest.mark.deep),
        pytest.param({"cp": 4}, "selective", id="more than heads of keys", marks=pytest.mark.deep),
    ],
)
def test_ranks_that_share_rows_agree_with_one(
    tmp_path: Path, one: Any, degrees: dict[str, int], recomputed: str
) -> None:
    agree(one, asyncio.run(history(*ranks(degrees, recomputed), tmp_path)))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_ranks_agree_with_one_which_goes_on_from_their_checkpoint(
    tmp_path: Path, one: Any
) -> None:
    agree(one, asyncio.run(history(*ranks({"cp": 2}), tmp_path)))

    async def goes_on() -> tuple[int, dict[str, torch.Tensor], list[Any]]:
        async with trainer_of(*ranks({}), tmp_path, 4) as (mesh, facts):
            values = await mesh.first("values", recorded_batch().samples)
            return facts["version"], await published(mesh), values

    version, weights, values = asyncio.run(goes_on())
    assert version == 4
    same_weights(one[0][-1][1], weights, updates=version)
    assert [v for each in values for v in each] == pytest.approx(one[1][1], **NEAR)


def agree(one: Any, several: Any) -> None:
    for (a, weights_a), (b, weights_b) in zip(one[0], several[0], strict=True):
        assert b.kernel == a.kernel
        same_step(a, b)
        same_weights(weights_a, weights_b, updates=a.version)
    assert several[0][0][0].metrics["ratio"] == pytest.approx(1.0, **NEAR)
    for a, b in zip(one[1], several[1], strict=True):
        assert b == pytest.approx(a, **NEAR)
