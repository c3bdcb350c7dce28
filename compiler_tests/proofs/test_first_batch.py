"""What the first batch proves of a loss: faults of a mask and of a kernel are named."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import forgedsl
from forgedsl.errors import GuardError
from forgedsl.lower.job import Node
from forgedsl.runs import proofs
from forgedsl_runtime.data_types import Sample, StepResult
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.proofs import first_batch
from forgedsl_runtime.proofs.failures import failure
from forgedsl_runtime.proofs.watch import Proofs

B, T, H, V = 3, 5, 8, 19


def sample(number: int, tokens: int = 6) -> Sample:
    return Sample(
        token_ids=[number] * (tokens + 1), num_prompt=1, mask=[True] * tokens,
        token_fields={"behavior": [-float(i) for i in range(tokens)]},
    )  # fmt: skip


def test_few_samples_are_spread_and_pairs_stay_together() -> None:
    many = [sample(i) for i in range(100)]
    assert [each.token_ids[0] for each in first_batch.few(many, pairs=False)] == [*range(0, 96, 12)]
    paired = [each.token_ids[0] for each in first_batch.few(many, pairs=True)]
    assert paired == [0, 1, 24, 25, 48, 49, 72, 73]
    assert len(first_batch.few(many[:3], pairs=False)) == 3


def total(samples: Sequence[Sample], *, masked: bool) -> dict[str, float]:
    """A loss that reads `behavior`, of all tokens or of those that count."""
    values = [
        value
        for each in samples
        for value, on in zip(each.token_fields["behavior"], each.mask, strict=True)
        if on or not masked
    ]
    return {"loss": math.fsum(values), "tokens": 1.0}


def test_masked_tokens_without_influence() -> None:
    line = first_batch.masks("mine", [sample(0)], lambda each: total(each, masked=True))
    assert line == {
        "proof": "masks", "loss": "mine", "sequences": 1, "masked": 2, "holds": True, "changed": [],
    }  # fmt: skip
    assert failure(line) == ""


def test_masked_tokens_that_reach_the_loss_are_found() -> None:
    line = first_batch.masks("mine", [sample(0)], lambda each: total(each, masked=False))
    assert (line["holds"], line["changed"]) == (False, ["loss"])
    assert failure(line) == (
        "masked tokens reach loss `mine`: with NaN in their fields, loss changed"
    )


class Unsteady:
    """A loss that gives other bits each time, as sums by atomics do; with `leaks` it also reads
    masked tokens."""

    def __init__(self, *, leaks: bool) -> None:
        self.masked, self.calls = not leaks, 0

    def __call__(self, samples: Sequence[Sample]) -> dict[str, float]:
        self.calls += 1
        found = total(samples, masked=self.masked)
        return found | {"loss": found["loss"] + 1e-7 * self.calls}


def test_where_equal_batches_differ_only_nan_is_a_fault() -> None:
    line = first_batch.masks("mine", [sample(0)], Unsteady(leaks=False))
    assert (line["holds"], line["changed"]) == (None, [])
    assert failure(line) == ""
    assert proofs.text(line) == (
        "masks of `mine` were not compared bit for bit: two evaluations of one batch give "
        "different bits of loss on this device"
    )
    assert [*proofs.closing([line])] == []
    line = first_batch.masks("mine", [sample(0)], Unsteady(leaks=True))
    assert (line["holds"], line["changed"]) == (False, ["loss"])


@pytest.mark.parametrize("name", ["dapo", "gspo"])
def test_small_chunks_give_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the logits in float64 exist a few rows at a time."""
    loss, run = forgedsl.compile_loss(name), first_batch._run
    whole = compared(loss)

    def in_chunks(*args: Any, chunk_rows: int | None = None, **more: Any) -> Any:
        return run(*args, chunk_rows=chunk_rows or 2, **more)

    monkeypatch.setattr(first_batch, "_run", in_chunks)
    parts = compared(loss)
    assert parts.wanted == pytest.approx(whole.wanted, rel=1e-12)
    assert parts.norm == pytest.approx(whole.norm, rel=1e-12)


def test_a_mask_that_is_inverted_is_found() -> None:
    """The right loss counts tokens that the samples' mask leaves out."""

    def inverted(samples: Sequence[Sample]) -> dict[str, float]:
        other = [replace(each, mask=[not on for on in each.mask]) for each in samples]
        return total(other, masked=True)

    line = first_batch.masks("mine", [sample(0)], inverted)
    assert failure(line).startswith("masked tokens reach loss `mine`")


def on_policy(loss: LossFunction, samples: Sequence[Sample]) -> first_batch.Compared:
    """The first batch of a run: `behavior` has the log-probs of the policy itself, moved as
    `samples` have it moved."""
    rng = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, H, generator=rng) for n in (B * T, V))
    labels = torch.randint(V, (B * T,), generator=rng)
    own = (hidden @ weight.T).log_softmax(-1)[torch.arange(B * T), labels]
    shift = torch.tensor([v for each in samples for v in each.token_fields["behavior"]])
    given: dict[str, Any] = {
        "seq_id": torch.arange(B).repeat_interleave(T), "behavior": own + shift,
        "adv": torch.tensor([1.0, -0.5, 0.7]),
    }  # fmt: skip
    given = {name: given[name] for name in ("seq_id", *loss.input_names)}
    totals = loss.totals(labels=labels, **given)
    return first_batch.compare(
        loss, hidden, weight, labels=labels, temperature=1.0, shared={},
        given=given | {"totals": totals},
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gradient_of_rounding_alone_is_no_fault(dtype: torch.dtype) -> None:
    """All scores are equal, and the reference is the policy: the gradient should be 0."""
    loss = forgedsl.compile_loss("grpo", params={"beta": 0.04})
    rng = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, H, generator=rng).to(dtype) for n in (B * T, V))
    labels = torch.randint(V, (B * T,), generator=rng)
    own = (hidden @ weight.T).float().log_softmax(-1)[torch.arange(B * T), labels]
    given: dict[str, Any] = {
        "seq_id": torch.arange(B).repeat_interleave(T), "behavior": own, "ref": own,
        "adv": torch.zeros(B),
    }  # fmt: skip
    given = {name: given[name] for name in ("seq_id", *loss.input_names)}
    totals = loss.totals(labels=labels, **given)

    def line() -> dict[str, Any]:
        found = first_batch.compare(
            loss, hidden, weight, labels=labels, temperature=1.0, shared={},
            given=given | {"totals": totals},
        )  # fmt: skip
        return first_batch.line_of("grpo", [found], B)

    found = line()
    assert found["holds"] is True, found
    assert found["gradient_apart"] <= found["bounds"][1]
    given["adv"] = torch.full((B,), 0.01)
    assert line()["holds"] is True


class OtherBound(LossFunction):
    """A loss whose file says another bound of clipping than what runs: 0.2 is 0.3 there."""

    def using(self, backend: str) -> Any:
        params = {"clip_low": 0.3, "clip_high": 0.3, "beta": 0.0}
        return forgedsl.compile_loss("grpo", params=params, backend=backend)


def test_another_bound_of_clipping_is_found_though_no_token_of_the_first_batch_is_clipped() -> None:
    zeros = [replace(sample(0), token_fields={"behavior": [0.0] * T}) for _ in range(B)]
    right = forgedsl.compile_loss("grpo", params={"clip_low": 0.2, "clip_high": 0.2, "beta": 0.0})
    wrong = OtherBound(right.spec)
    unmoved = first_batch.line_of("grpo", [on_policy(wrong, zeros)], B)
    assert unmoved["holds"] is True
    moved = first_batch.spread(zeros)
    assert {v for each in moved for v in each.token_fields["behavior"]} == {*first_batch.APART}
    line = first_batch.line_of("grpo", [on_policy(wrong, moved)], B)
    assert "loss `grpo` differs from its expression" in failure(line)
    assert first_batch.line_of("grpo", [on_policy(right, moved)], B)["holds"] is True


KINK = """forge 1
loss kink(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-ratio * adv + 0.1 * abs(ratio - 1), mask)
}
"""


def test_a_kink_at_a_ratio_of_one_is_not_where_rounding_decides() -> None:
    loss = forgedsl.compile_loss(KINK)
    zeros = [replace(sample(0), token_fields={"behavior": [0.0] * T}) for _ in range(B)]
    moved = first_batch.line_of("kink", [on_policy(loss, first_batch.spread(zeros))], B)
    assert moved["holds"] is True, moved


def test_a_failure_by_a_kink_says_how_to_go_on() -> None:
    line = {
        "proof": "loss", "loss": "mine", "holds": False, "kernel": "torch/linear", "value": 1.0,
        "value_float64": 1.00001, "gradient_apart": 0.05, "bounds": [1e-4, 1e-3],
    }  # fmt: skip
    assert 'proofs { off { loss = "a kink of the loss" } }' in failure(line)
    assert "kink" not in failure(line | {"value_float64": 1.1})


def compared(loss: LossFunction, dtype: torch.dtype = torch.float32) -> first_batch.Compared:
    rng = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    labels = torch.randint(V, (B * T,), generator=rng)
    seq_id = torch.arange(B).repeat_interleave(T)
    given: dict[str, Any] = {"seq_id": seq_id, "behavior": -noise(B * T).abs(), "adv": noise(B)}
    given = {name: given[name] for name in ("seq_id", *loss.input_names)}
    totals = loss.totals(labels=labels, **given)
    return first_batch.compare(
        loss, noise(B * T, H).to(dtype), noise(V, H).to(dtype), labels=labels, temperature=0.9,
        shared={}, given=given | {"totals": totals},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "sapo", "reinforce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_loss_is_its_expression(name: str, dtype: torch.dtype) -> None:
    params = {"beta": 0.0} if name == "grpo" else {}
    found = compared(forgedsl.compile_loss(name, params=params), dtype)
    line = first_batch.line_of(name, [found], 3)
    assert line["holds"] is True
    assert line["tokens"] == B * T
    assert line["gradient_norm"] > 0


class Wrong(LossFunction):
    """A loss whose expression is another one than what runs."""

    def using(self, backend: str) -> Any:
        return forgedsl.compile_loss("dapo", params={"clip_low": 0.9}, backend=backend)


def test_a_kernel_that_is_not_its_expression_is_found() -> None:
    right = forgedsl.compile_loss("dapo")
    line = first_batch.line_of("dapo", [compared(Wrong(right.spec))], 3)
    assert line["holds"] is False
    assert "loss `dapo` differs from its expression" in failure(line)


def test_parts_of_ranks_add_up() -> None:
    half = first_batch.Compared(kernel="k", tokens=2, value=1.0, wanted=1.0, apart=0.0, norm=3.0)
    other = first_batch.Compared(kernel="k", tokens=1, value=2.0, wanted=2.0, apart=0.4, norm=4.0)
    line = first_batch.line_of(
        "mine", [half, other, first_batch.Compared(why=first_batch.ELSEWHERE)], 8
    )
    assert (line["value"], line["tokens"], line["gradient_norm"]) == (3.0, 3, 5.0)
    assert (line["gradient_apart"], line["holds"]) == (0.08, False)


def test_what_is_not_compared_says_why() -> None:
    line = first_batch.line_of("mine", [first_batch.Compared(why="a loss in Python")], 8)
    assert (line["holds"], line["why"]) == (None, "a loss in Python")
    assert failure(line) == ""
    assert proofs.text(line) == "`mine` was not compared with float64: a loss in Python"


def test_a_table_of_values_alone_has_no_kernel() -> None:
    loss = forgedsl.compile_loss("value_loss")
    found = first_batch.compare(
        loss, torch.ones(2, H), torch.ones(V, H), labels=torch.zeros(2, dtype=torch.int64),
        temperature=1.0, shared={}, given={},
    )  # fmt: skip
    assert found.why == "it reads values alone, and runs no kernel"


def watch(off: dict[str, str] | None = None) -> Proofs:
    job: Any = SimpleNamespace(
        samplers={}, trainers={}, services={}, nodes=(), proofs=SimpleNamespace(off=off or {})
    )
    return Proofs(job)


def stepped(*lines: dict[str, Any]) -> StepResult:
    return StepResult(
        version=1, loss=0.0, grad_norm=0.0, lr=0.0, tokens=1, metrics={}, kernel="", proofs=[*lines]
    )


STEP = Node(name="step", op="step", id="n", level="batch", target="trainer", origin="t.forge:1:1")
LEAK = {
    "proof": "masks", "loss": "mine", "sequences": 1, "masked": 2, "holds": False,
    "changed": ["loss"],
}  # fmt: skip


def test_a_proof_that_fails_ends_the_run_and_is_written(tmp_path: Path) -> None:
    proof = watch()
    with pytest.raises(GuardError, match="masked tokens reach loss `mine`"):
        proof.record_step(STEP, stepped(LEAK))
    proof.write(tmp_path)
    (line,) = map(json.loads, (tmp_path / "proofs.jsonl").read_text("utf-8").splitlines())
    assert line == LEAK
    assert proofs.text(line).startswith("does not hold: NaN in the fields of 2 tokens")


def test_what_is_off_is_written_with_its_reason(tmp_path: Path) -> None:
    proof = watch({"gap": "only a test"})
    proof.record_step(STEP, stepped())
    proof.write(tmp_path)
    (line,) = map(json.loads, (tmp_path / "proofs.jsonl").read_text("utf-8").splitlines())
    assert line == {"proof": "gap", "off": "only a test"}
    assert [*proofs.closing([line])] == ["gap off: only a test"]
