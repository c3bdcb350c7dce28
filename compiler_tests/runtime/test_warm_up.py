"""Passes on made-up samples before the first step: they change nothing, and run where they help."""

from __future__ import annotations

import asyncio
import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_trainer_ranks import (
    EPS,
    published,
    recorded_batch,
    recorded_loss,
    same_step,
    same_weights,
    trainer_of,
)
from warmed_trainer import FrozenModel, ModelWarmedTrainer, WarmedFrozenModel, WarmedTrainer

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.lower import job as spec
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.packing import pack
from forgedsl_runtime.proofs import first_batch
from forgedsl_runtime.services.titan import warm_up
from forgedsl_runtime.services.titan.actor import TitanTrainer

STEP = spec.Node(
    id="step", name="step", op="step", target="trainer", loss="recorded", level="batch", origin="",
    inputs=(spec.Input(argument="batch", edge="batch"),),
)  # fmt: skip
SYNC = spec.Node(
    id="sync", name="sync", op="sync", target="trainer", to="generator", level="batch", origin=""
)
GENERATOR = spec.VllmService(
    model="policy", mesh=spec.Mesh(name="generator", device="cpu"), dtype="f32",
    sampling=spec.Sampling(max_tokens=16),
)  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("warmed_actor", "lora"),
    [
        (WarmedTrainer, None),
        pytest.param(WarmedTrainer, spec.Lora(rank=4, alpha=16.0), marks=pytest.mark.full),
        pytest.param(ModelWarmedTrainer, None, marks=pytest.mark.full),
    ],
    ids=["loss", "loss, adapters", "model alone"],
)
def test_a_step_after_the_warm_up_is_the_same(
    tmp_path: Path,
    make_job: Any,
    make_titan: Any,
    monkeypatch: pytest.MonkeyPatch,
    warmed_actor: type,
    lora: spec.Lora | None,
) -> None:
    """With adapters, the trainer serves a reference too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the module of the actor
    services = {
        "trainer": make_titan(eps=EPS).model_copy(update={"lora": lora}), "generator": GENERATOR
    }  # fmt: skip
    if lora is not None:
        services["reference"] = make_titan(trained=False).model_copy(
            update={"served_by": "trainer"}
        )
    job = make_job(
        services=services,
        losses={"recorded": recorded_loss()},
        nodes=(STEP, SYNC),
    )

    async def step(actor: type) -> Any:
        folder = tmp_path / actor.__name__
        folder.mkdir()
        async with trainer_of(job, 1, folder, actor=actor) as (mesh, facts):
            result = await mesh.first("step", recorded_batch(), "recorded")
            return facts, result, await published(mesh)

    facts, plain, weights = asyncio.run(step(TitanTrainer))
    warmed_facts, warmed, warmed_weights = asyncio.run(step(warmed_actor))
    assert "seconds" not in facts
    assert warmed_facts["seconds"].keys() == {"first passes", "probe"}
    same_step(plain, warmed)
    same_weights(weights, warmed_weights, updates=1)
    assert [line["holds"] for line in warmed.proofs] == [line["holds"] for line in plain.proofs]


def loss_of_pairs() -> spec.Loss:
    functions, sources = api.load_functions("std/rl")
    loss = lower_loss(functions["dpo"], Reporter(), sources)
    assert loss is not None
    return loss


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_trainer_of_pairs_warms_up_in_one_row(
    tmp_path: Path, make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    titan = make_titan().model_copy(update={"batch": spec.BatchShape(seq_len=64, rows=1)})
    job = make_job(
        services={"trainer": titan, "generator": GENERATOR}, losses={"recorded": loss_of_pairs()},
        nodes=(STEP, SYNC),
    )  # fmt: skip

    async def facts() -> Any:
        async with trainer_of(job, 1, tmp_path, actor=WarmedTrainer) as (_, found):
            return found

    assert "first passes" in asyncio.run(facts())["seconds"]


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_frozen_model_computes_the_same_after_its_first_pass(
    tmp_path: Path, make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    job = make_job(services={"trainer": make_titan(trained=False), "generator": GENERATOR})
    samples = recorded_batch().samples

    async def logprobs(actor: type) -> Any:
        folder = tmp_path / actor.__name__
        folder.mkdir()
        async with trainer_of(job, 1, folder, actor=actor) as (mesh, facts):
            return facts, await mesh.first("logprobs", samples)

    facts, plain = asyncio.run(logprobs(FrozenModel))
    warmed_facts, warmed = asyncio.run(logprobs(WarmedFrozenModel))
    assert "seconds" not in facts
    assert [*warmed_facts["seconds"]] == ["first pass"]
    assert warmed == plain


def _job(make_job: Any, titan: Any, generator: str, *, on_gpu: bool, python: str = "") -> spec.Job:
    """A trainer that publishes to a generator; "" is no generator."""
    mesh = titan.mesh.model_copy(update={"device": "gpu" if on_gpu else "cpu"})
    services = {"trainer": titan.model_copy(update={"mesh": mesh})}
    services |= {generator: GENERATOR} if generator else {}
    loss = spec.Loss(name="recorded", source="", tree="", fields=(), reports=(), python=python)
    made: spec.Job = make_job(services=services, losses={"recorded": loss}, nodes=(STEP, SYNC))
    return made


@pytest.mark.parametrize(
    ("generator", "on_gpu", "done"),
    [("generator", True, ["first passes", "probe"]), ("generator", False, []), ("", True, [])],
    ids=["GPU", "CPU", "no engine"],
)
def test_what_is_done_while_engines_start(
    make_job: Any, make_titan: Any, generator: str, on_gpu: bool, done: list[str]
) -> None:
    job, ran = _job(make_job, make_titan(), generator, on_gpu=on_gpu), []
    seconds = warm_up.prepare(
        job, "trainer", lambda: ran.append("first passes"), lambda: ran.append("probe")
    )
    assert [*seconds] == ran == done


def test_a_trainer_that_never_publishes_computes_no_probe(make_job: Any, make_titan: Any) -> None:
    job = _job(make_job, make_titan(), "generator", on_gpu=True)
    alone = job.model_copy(update={"nodes": job.nodes[:1]})
    assert [*warm_up.prepare(alone, "trainer", lambda: None, lambda: None)] == ["first passes"]


def test_losses_in_python_are_not_called(make_job: Any, make_titan: Any) -> None:
    """They may keep state."""
    job = _job(make_job, make_titan(), "generator", on_gpu=True, python="losses.py")
    titan = SimpleNamespace(config=SimpleNamespace(vocab_size=50), dp_size=1)
    ((name, samples),) = warm_up.samples_by_loss(job, "trainer", titan, {})
    assert name == ""
    assert not any(sample.token_fields or sample.sequence_fields for sample in samples)


def test_made_up_samples_have_the_fields_of_the_loss() -> None:
    loss = LossFunction.from_job(recorded_loss())
    samples = warm_up.made_up(loss, 50, seq_len=64, rows=4, groups=2)
    assert len(samples) == 8
    for sample in samples:
        assert len(sample.token_ids) == 64
        assert max(sample.token_ids) < 50
        assert sample.token_fields.keys() == {"behavior", "ref"}
        assert {len(values) for values in sample.token_fields.values()} == {len(sample.mask)}
        assert sample.sequence_fields.keys() == {"adv"}
        assert abs(sum(sample.token_fields["ref"]) / len(sample.mask) + math.log(50)) < 0.1


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "rows"])
@pytest.mark.parametrize(
    ("rows", "share"), [(1, True), (2, True), (2, False), (3, True), (3, False), (8, True)]
)
def test_made_up_pairs_fit_in_a_microbatch(rows: int, share: bool, flat: bool) -> None:
    """Also the few of them on which a loss is checked."""
    loss = LossFunction.from_job(loss_of_pairs())
    for seq_len, groups in product((4, 5, 64, 127, 512, 1024, 1536, 2048, 4096), (1, 3)):
        samples = warm_up.made_up(loss, 50, seq_len=seq_len, rows=rows, groups=groups)
        for some in (samples, first_batch.few(samples, pairs=True)):
            for rank in range(groups):
                micros = pack(some, seq_len=seq_len, rows=rows, rank=rank, world=groups,
                              pairs=True, flat=flat, share=share)  # fmt: skip
                assert micros
                assert all(micro.tokens.shape[0] <= (1 if flat else rows) for micro in micros)


def test_made_up_samples_have_routes_if_a_trainer_replays_them() -> None:
    samples = warm_up.made_up(None, 50, seq_len=64, rows=4, groups=1, experts=(3, 300, 8))
    assert all(sample.routes is not None for sample in samples)
    routes = np.concatenate([sample.routes for sample in samples if sample.routes is not None])
    assert routes.shape == (4 * 64, 3, 8)
    assert routes.dtype == np.int16
    assert set(routes.flatten().tolist()) == set(range(300))
    assert all(len(set(token)) == 8 for token in routes.reshape(-1, 8).tolist())


def test_long_rows_are_not_filled() -> None:
    loss = LossFunction.from_job(recorded_loss())
    samples = warm_up.made_up(loss, 50, seq_len=65_536, rows=2, groups=1)
    assert sum(len(sample.token_ids) for sample in samples) == warm_up.MOST_TOKENS


def test_buffers_and_random_states_are_restored() -> None:
    model = torch.nn.BatchNorm1d(3)
    before = model.running_mean.clone()
    state = torch.random.get_rng_state()
    with warm_up.unchanged(model, torch.device("cpu")):
        model(torch.rand(5, 3))
        assert not torch.equal(model.running_mean, before)
    assert torch.equal(model.running_mean, before)
    assert torch.equal(torch.random.get_rng_state(), state)
