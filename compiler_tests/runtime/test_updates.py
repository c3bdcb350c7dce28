"""Several updates a step: which samples each sees, and that a trainer's agree with a plain loop."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.lower import job as spec
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime.data_types import Batch, Sample, StepResult
from forgedsl_runtime.updates import combine_results, samples_by_update

EPOCHS, MINIBATCHES = 2, 4
NUM_TOKENS = 16 * 14
"""at most, of the batch of a step"""
TIED = "model.embed_tokens.weight"
LOW, HIGH = 0.8, 1.2


def batch_of(groups: int, siblings: int = 2, **updates: int) -> Batch:
    draw = random.Random(5)
    samples, members = [], []
    for group in range(groups):
        for _ in range(siblings):
            prompt, length = draw.randint(3, 8), draw.randint(2, 14)
            old = [-1.5 + draw.gauss(0, 0.3) for _ in range(length)]
            samples.append(
                Sample(
                    token_ids=[draw.randint(3, 40) for _ in range(prompt + length)],
                    num_prompt=prompt,
                    mask=[draw.random() > 0.1 for _ in range(length)],
                    token_fields={"behavior": old},
                    sequence_fields={"adv": draw.gauss(0, 1), "num_steps": 3.0},
                )
            )
            members.append(100 + group)
    return Batch(samples=samples, members=members, **updates)


def result(value: float, *, skipped: bool = False, metric: float = 0.0) -> StepResult:
    return StepResult(version=0, loss=value, grad_norm=2 * value, lr=0.1, tokens=10,
                      metrics={"clip_frac": metric}, kernel="torch", skipped=skipped)  # fmt: skip


# ---- which samples


def test_one_update_is_the_batch_itself() -> None:
    batch = batch_of(4)
    assert [part is batch.samples for part in samples_by_update(batch)] == [True]


def test_one_result_is_that_of_the_step() -> None:
    only = result(1.0)
    assert combine_results([only], batch_of(4)) is only


def test_every_pass_sees_every_group_once_and_whole() -> None:
    batch = batch_of(8, epochs=2, minibatches=4, seed=1)
    texts = {tuple(s.token_ids): m for s, m in zip(batch.samples, batch.members, strict=True)}
    seen = [[texts[tuple(s.token_ids)] for s in part] for part in samples_by_update(batch)]
    passes = [sorted(chain.from_iterable(seen[i : i + 4])) for i in (0, 4)]
    assert passes == [sorted(batch.members)] * 2
    assert all(len(part) == 4 and len(set(part)) == 2 for part in seen)


def dealt(batch: Batch) -> list[list[tuple[int, ...]]]:
    return [[tuple(sample.token_ids) for sample in part] for part in samples_by_update(batch)]


def test_the_order_is_of_the_seed_and_the_pass() -> None:
    orders = [dealt(batch_of(8, epochs=2, minibatches=4, seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:4] != orders[0][4:]


def test_steps_are_counted_as_updates() -> None:
    found = samples_by_update(batch_of(4, epochs=2, minibatches=2))
    assert [part[0].sequence_fields["num_steps"] for part in found] == [12.0, 13.0, 14.0, 15.0]


def test_a_batch_that_lost_groups_has_no_empty_update() -> None:
    batch = batch_of(3, epochs=1, minibatches=4)
    assert [len(part) for part in samples_by_update(batch)] == [2, 2, 2]


# ---- what a step says of them


def test_a_step_reports_means_and_the_last_clip_fraction() -> None:
    batch = batch_of(4, epochs=2, minibatches=1)
    found = combine_results([result(1.0, metric=0.0), result(3.0, metric=0.5)], batch)
    assert (found.loss, found.grad_norm, found.tokens) == (2.0, 4.0, 10)
    assert found.metrics == {"clip_frac": 0.25, "clip_frac_last": 0.5}


def test_an_update_that_is_no_number_does_not_spoil_the_means() -> None:
    batch = batch_of(4, epochs=1, minibatches=3)
    found = combine_results([result(1.0), result(math.nan, skipped=True), result(3.0)], batch)
    assert (found.loss, found.skipped) == (2.0, True)


def test_a_report_may_be_infinite() -> None:
    batch = batch_of(4, epochs=1, minibatches=2)
    found = combine_results([result(1.0, metric=math.inf), result(3.0, metric=-math.inf)], batch)
    assert math.isnan(found.metrics["clip_frac"])
    assert found.metrics["clip_frac_last"] == -math.inf
    both = combine_results([result(1.0, metric=math.inf), result(3.0, metric=1.0)], batch)
    assert both.metrics["clip_frac"] == math.inf


def test_the_update_that_stops_the_run_is_what_is_shown() -> None:
    batch = batch_of(4, epochs=1, minibatches=3)
    found = combine_results([result(1.0), result(math.nan, skipped=True)], batch, stopped=True)
    assert math.isnan(found.loss)


# ---- PPO with 2 x 4 updates against a loop written by hand

PPO = """
forge 1
loss ppo(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -20.0, 20.0))
  minimize token_mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)
  report clip_frac = token_mean(abs(ratio - 1) > 0.2, mask)
}
loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) { minimize 0.1 * token_mean(-logprob, mask) }
"""


def recorded(step: int) -> Batch:
    """The batch of one step: other advantages each time."""
    batch = batch_of(8, epochs=EPOCHS, minibatches=MINIBATCHES, seed=step)
    draw = random.Random(step)
    samples = [
        replace(s, sequence_fields={"adv": draw.gauss(0, 1), "num_steps": float(step)})
        for s in batch.samples
    ]
    return replace(batch, samples=samples)


def with_demos() -> Batch:
    """One update of two losses: PPO on one batch, demonstrations of other lengths beside."""
    return Batch(samples=recorded(3).samples, beside=[("nll", batch_of(5, siblings=1).samples)])


def criticised() -> Batch:
    """A batch for a policy with a value head: an advantage and a return for each token."""
    draw = random.Random(11)

    def fields(sample: Sample) -> dict[str, list[float]]:
        drawn = {n: [draw.gauss(0, 1) for _ in sample.mask] for n in ("adv", "ret", "old")}
        return {**drawn, "proximal": sample.token_fields["behavior"]}

    batch = recorded(4)
    samples = [replace(s, token_fields=fields(s), sequence_fields={}) for s in batch.samples]
    return replace(batch, samples=samples)


STEPS = (*((recorded(n), "ppo") for n in range(3)), (with_demos(), "ppo"), (criticised(), "critic"))


async def trained(job: spec.Job, folder: Path) -> tuple[float, list[Any], list[list[float]]]:
    """The loss that a real trainer measures at the start, then three steps of it, one of two losses
    and one with a critic: results, and the weights after each; what the critic says then. Its
    weights lie in a folder, export."""
    from forgedsl_runtime.meshes import place
    from forgedsl_runtime.models import resolve_model
    from forgedsl_runtime.rendezvous import rendezvous_store
    from forgedsl_runtime.services.titan.actor import TitanTrainer
    from forgedsl_runtime.transports.registry import open_weights
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    store = rendezvous_store()
    model = resolve_model(job, "policy", folder, folder)
    mesh = Mesh.spawn(
        service="trainer",
        origin="x.forge:1:1",
        name="trainer",
        size=1,
        actor=TitanTrainer,
        args=(job, "trainer", str(model)),
        kwargs={
            "world": 1,
            "threads": place(job)["trainer"][0].threads,
            "rendezvous": (store.host, store.port),
        },
        start=bootstrap({"OMP_NUM_THREADS": "1"}, folder / "logs", "cpu"),
        logs=folder / "logs",
    )
    try:
        await mesh.first("setup", str(folder), "updates", None)
        found: list[tuple[StepResult, dict[str, Any]]] = []
        measured = await mesh.first("evaluate", recorded(0).samples, "ppo")
        for batch, loss in STEPS:
            result = await mesh.first("step", batch, loss)
            manifest = await mesh.first("publish")
            found.append((result, {name: v.clone() for name, v in open_weights(manifest)}))
        values = await mesh.first("values", recorded(0).samples)
        await mesh.first("export", str(folder / "export"), "f32")
        await mesh.call("close")
        return measured["loss"], found, values
    finally:
        await mesh.stop()


def losses_by_hand(model: Any, samples: Sequence[Sample]) -> Iterator[torch.Tensor]:
    """Each sequence's part of the loss of an update."""
    count = sum(sum(sample.mask) for sample in samples)
    for sample in samples:
        ids = torch.tensor(sample.token_ids)
        logits = model(ids[None]).logits[0, sample.num_prompt - 1 : -1]
        logprob = logits.log_softmax(-1).gather(1, ids[sample.num_prompt :, None])[:, 0]
        adv = sample.sequence_fields["adv"]
        ratio = (logprob - torch.tensor(sample.token_fields["behavior"])).exp()
        gain = torch.minimum(ratio * adv, ratio.clamp(LOW, HIGH) * adv)
        yield -(gain * torch.tensor(sample.mask)).sum() / count


def demos_by_hand(model: Any, samples: Sequence[Sample]) -> Iterator[torch.Tensor]:
    """Each sequence's part of the second loss, whose mean is over its own tokens."""
    count = sum(sum(sample.mask) for sample in samples)
    for sample in samples:
        ids = torch.tensor(sample.token_ids)
        logits = model(ids[None]).logits[0, sample.num_prompt - 1 : -1]
        logprob = logits.log_softmax(-1).gather(1, ids[sample.num_prompt :, None])[:, 0]
        yield -0.1 * (logprob * torch.tensor(sample.mask)).sum() / count


def critic_by_hand(model: Any, head: Any, samples: Sequence[Sample]) -> Iterator[torch.Tensor]:
    """Equation 9 of 1707.06347 without entropy, for each sequence: the policy's part as above, the
    value's half the larger square, times 0.1."""
    count = sum(sum(sample.mask) for sample in samples)
    for sample in samples:
        ids, place = torch.tensor(sample.token_ids), slice(sample.num_prompt - 1, -1)
        out = model(ids[None], output_hidden_states=True)
        logits, hidden = out.logits[0, place], out.hidden_states[-1][0, place]
        logprob = logits.log_softmax(-1).gather(1, ids[sample.num_prompt :, None])[:, 0]
        given = {name: torch.tensor(field) for name, field in sample.token_fields.items()}
        ratio = (logprob - given["proximal"]).exp()
        gain = torch.minimum(ratio * given["adv"], ratio.clamp(LOW, HIGH) * given["adv"])
        value = head(hidden)[:, 0]
        near = torch.minimum(torch.maximum(value, given["old"] - 0.2), given["old"] + 0.2)
        wrong = torch.maximum((value - given["ret"]) ** 2, (near - given["ret"]) ** 2)
        yield ((0.05 * wrong - gain) * torch.tensor(sample.mask)).sum() / count


def values_by_hand(model: Any, head: Any, samples: Sequence[Sample]) -> list[torch.Tensor]:
    with torch.no_grad():
        hidden = [
            model(torch.tensor([s.token_ids]), output_hidden_states=True).hidden_states[-1][0]
            for s in samples
        ]
        return [head(h[s.num_prompt - 1 : -1])[:, 0] for h, s in zip(hidden, samples, strict=True)]


def by_hand(opt: spec.Optimizer) -> tuple[float, list[Any], list[torch.Tensor], dict[str, float]]:
    """The same steps: one sequence at a time, no packing, no kernels, no FSDP. Of each
    tensor the largest root mean square of its gradient is given too."""
    from transformers import AutoModelForCausalLM

    folder = Path(api.__file__).parent / "pipelines/models/tiny_math"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    head = torch.nn.Linear(model.config.hidden_size, 1)
    with torch.no_grad():
        head.weight.zero_(), head.bias.zero_()
    weights = [*model.parameters(), *head.parameters()]
    adam = torch.optim.AdamW(
        weights, lr=opt.lr, betas=tuple(opt.betas), eps=opt.eps,
        weight_decay=opt.weight_decay,
    )  # fmt: skip
    start = sum(float(part.detach()) for part in losses_by_hand(model, recorded(0).samples))
    found, slopes = [], dict.fromkeys(dict(model.named_parameters()), 0.0)
    for batch, name in STEPS:
        losses = []
        for samples in samples_by_update(batch):
            total = 0.0
            beside = (demos_by_hand(model, more) for _, more in batch.beside)
            first = (
                losses_by_hand(model, samples)
                if name == "ppo"
                else critic_by_hand(model, head, samples)
            )
            for loss in chain(first, *beside):
                loss.backward()
                total += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(weights, opt.max_norm)
            for key, weight in model.named_parameters():
                slopes[key] = max(slopes[key], float(weight.grad.square().mean().sqrt()))
            adam.step()
            adam.zero_grad()
            losses.append(total)
        found.append((losses, {name: v.clone() for name, v in model.state_dict().items()}))
    return start, found, values_by_hand(model, head, recorded(0).samples), slopes


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_passes_of_four_two_losses_and_a_critic_agree_with_a_plain_loop(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    functions, sources = api.load_functions(PPO)
    losses = {n: lower_loss(functions[n], Reporter(), sources) for n in ("ppo", "nll")}
    functions, sources = api.load_functions("std/rl")
    losses["critic"] = lower_loss(functions["ppo_critic"], Reporter(), sources)
    # eps above the rounding of gradients, which Adam would blow up to whole steps
    adam = spec.Optimizer(lr=1e-4, eps=1e-4)
    service = make_titan().model_copy(update={"optimizer": adam, "value_head": True})
    step = spec.Node(
        id="step", name="step", op="step", target="trainer", level="batch", loss="ppo",
        epochs=EPOCHS, minibatches=MINIBATCHES, origin="x.forge:1:1",
    )  # fmt: skip
    length = spec.Schedule(mode="sync", steps=len(STEPS), prompts=1, credits=1, age_bound=0)
    parts_of_job = {"services": {"trainer": service}, "losses": losses, "nodes": (step,)}
    job = make_job(**parts_of_job, schedule=length)
    measured, ours, values = asyncio.run(trained(job, tmp_path))
    start, plain, plain_values, slopes = by_hand(adam)
    sums, updates = tolerance.of_shipped("tiny_math", length=64, tokens=NUM_TOKENS), 0
    near = tolerance.near(torch.float32, sums)
    assert measured == pytest.approx(start, **near)
    for (result, weights), (parts_, theirs) in zip(ours, plain, strict=True):
        assert result.loss == pytest.approx(sum(parts_) / len(parts_), **near)
        updates += len(parts_)
        for name, value in weights.items():
            # of terms of either sign, one of each token
            terms = slopes.get(name, slopes[TIED]) * math.sqrt(NUM_TOKENS)
            close = tolerance.adam(
                torch.float32, sums, updates=updates, gradient=terms, optimizer=adam
            )
            torch.testing.assert_close(value, theirs[name], **close)
    for mine, other in zip(values, plain_values, strict=True):
        assert mine == pytest.approx(other.tolist(), **near)
    assert max(abs(value) for row in values for value in row) > 1e-3
    assert (tmp_path / "export/value_head/model.safetensors").exists()
    metrics = ours[-2][0].metrics
    both = metrics["ppo.loss"] + metrics["nll.loss"]
    assert both == pytest.approx(
        ours[-2][0].loss, **tolerance.near(torch.float32, 2 * EPOCHS * MINIBATCHES)
    )
    assert "ppo.clip_frac" in metrics


# ---- offload
