"""One recorded batch on one rank and on two FSDP ranks: the same step, and a step is resumable."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import tolerance
import torch

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.lower import job as spec
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime.data_types import Batch, Sample, StepResult

LOSS = """
forge 1
import "std/rl" as rl

loss recorded(
  logprob: diff [B, T] f32, entropy: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32,
  adv: [B] f32, mask: [B, T] bool,
) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  pg    = -min(ratio * adv, clip(ratio, 0.8, 1.2) * adv)
  minimize seq_mean(pg + 0.02 * ratio * rl.k3(logprob, ref) - 0.01 * entropy, mask)
  report clip_frac = token_mean(abs(ratio - 1) > 0.2, mask)
}
"""


EPS = 1e-3
"""of Adam: far above the rounding of gradients, which it would blow up to whole steps"""
ADDITIONS = tolerance.of_shipped("tiny_math", length=64, tokens=24 * 14)
"""of what is compared here: `recorded_batch` through the model that `make_job` has"""


def same_step(one: StepResult, other: StepResult) -> None:
    """Results of a step whose sums were taken in another order."""
    near = tolerance.near(torch.float32, ADDITIONS)
    assert other.tokens == one.tokens
    assert (other.loss, other.grad_norm) == pytest.approx((one.loss, one.grad_norm), **near)
    assert other.metrics == pytest.approx(one.metrics, **near)


def same_weights(
    one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, updates: int
) -> None:
    """Weights after so many steps of `make_titan(eps=EPS)`."""
    adam = spec.Optimizer(lr=2e-4, eps=EPS)
    close = tolerance.adam(
        torch.float32, ADDITIONS, updates=updates, gradient=adam.max_norm, optimizer=adam
    )
    assert other.keys() == one.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, **close)


def recorded_loss() -> spec.Loss:
    functions, sources = api.load_functions(LOSS)
    loss = lower_loss(functions["recorded"], Reporter(), sources)
    assert loss is not None
    return loss


def recorded_batch() -> Batch:
    """24 sequences of uneven length with noisy old log-probs."""
    draw = random.Random(3)
    samples = []
    for i in range(24):
        num_prompt, length = draw.randint(3, 8), draw.randint(2, 14)
        noise = [-1.5 + draw.gauss(0, 0.3) for _ in range(length)]
        samples.append(
            Sample(
                token_ids=[draw.randint(3, 40) for _ in range(num_prompt + length)],
                num_prompt=num_prompt,
                mask=[draw.random() > 0.1 for _ in range(length)],
                token_fields={"behavior": noise, "ref": [v + 0.1 for v in noise]},
                sequence_fields={"adv": draw.gauss(0, 1) if i else 0.0},
            )
        )
    return Batch(samples=samples)


@asynccontextmanager
async def trainer_of(
    job: spec.Job, procs: int, folder: Path, resume: int | None = None, actor: Any = None
) -> AsyncIterator[Any]:
    """A trainer on `procs` ranks that is set up, and the facts it returned. `actor` is its class,
    if it is another one."""
    from forgedsl_runtime.meshes import place
    from forgedsl_runtime.models import resolve_model
    from forgedsl_runtime.rendezvous import rendezvous_store
    from forgedsl_runtime.services.titan.actor import TitanTrainer
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    store = rendezvous_store()
    model = resolve_model(job, "policy", folder, folder)
    mesh = Mesh.spawn(
        service="trainer",
        origin="x.forge:1:1",
        name="trainer",
        size=procs,
        actor=actor or TitanTrainer,
        args=(job, "trainer", str(model)),
        kwargs={
            "world": procs,
            "threads": place(job)["trainer"][0].threads,
            "rendezvous": (store.host, store.port),
        },
        start=bootstrap({"OMP_NUM_THREADS": "1"}, folder / f"trainer{procs}", "cpu"),
        logs=folder / f"trainer{procs}",
    )
    try:
        yield mesh, await mesh.first("setup", str(folder), uuid4().hex, resume)
        await mesh.call("close")
    finally:
        await mesh.stop()


async def published(mesh: Any) -> dict[str, torch.Tensor]:
    """The weights as a generator gets them."""
    from forgedsl_runtime.transports.registry import open_weights

    manifest = await mesh.first("publish")
    return {name: value.clone() for name, value in open_weights(manifest)}


async def two_steps(
    job: spec.Job, procs: int, folder: Path, resume: int | None = None, ask: Any = None
) -> Any:
    """Facts of the start, and what one `ask`s at the end; results and weights after each step of a
    trainer on `procs` ranks."""
    async with trainer_of(job, procs, folder, resume) as (mesh, facts):
        found = []
        for _ in range(2):
            result = await mesh.first("step", recorded_batch(), "recorded")
            found.append((result, await published(mesh)))
        await mesh.call("save", result.version)
        facts["asked"] = await ask(mesh) if ask is not None else None
        return facts, found


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "lora",
    [
        pytest.param(None, id="weights", marks=pytest.mark.deep),
        pytest.param(spec.Lora(rank=4, alpha=16.0), id="adapters", marks=pytest.mark.full),
    ],
)
def test_one_and_two_ranks_agree_and_resume_continues(
    tmp_path: Path, make_job: Any, make_titan: Any, lora: spec.Lora | None
) -> None:
    loss = recorded_loss()

    def run(procs: int, folder: Path, resume: int | None = None) -> Any:
        folder.mkdir(exist_ok=True)
        service = make_titan(procs=procs, eps=EPS).model_copy(update={"lora": lora})
        job = make_job(services={"trainer": service}, losses={"recorded": loss})
        return asyncio.run(two_steps(job, procs, folder, resume))

    _, one = run(1, tmp_path / "one")
    _, two = run(2, tmp_path / "two")
    for (a, weights_a), (b, weights_b) in zip(one, two, strict=True):
        same_step(a, b)
        same_weights(weights_a, weights_b, updates=a.version)
    facts, more = run(1, tmp_path / "one", resume=2)
    assert facts["version"] == 2
    assert [result.version for result, _ in more] == [3, 4]
    assert more[0][0].loss != one[1][0].loss


def test_nobody_else_gets_the_port_where_ranks_meet() -> None:
    from forgedsl_runtime.rendezvous import rendezvous_store

    store = rendezvous_store()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((store.host, store.port))
