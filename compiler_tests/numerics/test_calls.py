"""compile_loss and calls: what is accepted, and what is said otherwise."""

from __future__ import annotations

import pytest
import torch
from tolerance import EXACT

import forgedsl
from forgedsl.errors import SourceError
from forgedsl_runtime.losses import token_logprobs

TEXT = """forge 1
param eps : float = 0.2
loss mine(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv), mask)
}
"""


def call(loss, **changes):
    rng = torch.Generator().manual_seed(0)
    given = {
        "logits": torch.randn(2, 3, 5, generator=rng),
        "labels": torch.randint(5, (2, 3), generator=rng),
        "behavior": torch.randn(2, 3, generator=rng),
        "adv": torch.randn(2, generator=rng),
    }
    given.update(changes)
    return loss(**{name: value for name, value in given.items() if value is not None})


def test_text_and_parameters():
    narrow = forgedsl.compile_loss(TEXT, params={"eps": 0.01})
    assert call(narrow).loss != call(forgedsl.compile_loss(TEXT)).loss


def test_text_equals_the_standard_loss(losses):
    mine, ppo = forgedsl.compile_loss(TEXT), forgedsl.compile_loss("ppo")
    torch.testing.assert_close(call(mine).loss, call(ppo).loss)


def test_path(tmp_path):
    path = tmp_path / "mine.forge"
    path.write_text(TEXT)
    assert forgedsl.compile_loss(path).name == "mine"
    assert forgedsl.compile_loss(str(path), "mine").name == "mine"


def test_folded_inputs_are_not_needed():
    assert "ref" in forgedsl.compile_loss("grpo").input_names
    without = forgedsl.compile_loss("grpo", params={"beta": 0.0})
    assert without.input_names == ("behavior", "adv")
    assert without.reports == ("clip_frac", "ratio")


@pytest.mark.parametrize(
    ("source", "params", "message"),
    [
        ("grp", {}, "did you mean `grpo`"),
        ("grpo", {"clip_hi": 0.3}, "no parameter `clip_hi`"),
        ("dr_grpo", {}, "parameter `horizon` has no value"),
        ("grpo", {"beta": "much"}, "parameter `beta` must be float"),
        (TEXT.replace("1 + eps", "1 + epss"), {}, "undefined name `epss`"),
        ("forge 1\nparam x : int = 1\n", {}, "declares 0 losses"),
    ],
)
def test_mistakes_in_the_source(source, params, message):
    with pytest.raises(SourceError, match=message):
        forgedsl.compile_loss(source, params=params)


def test_triton_never_falls_back(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    loss = forgedsl.compile_loss(TEXT, backend="triton")
    with pytest.raises(RuntimeError, match="backend='triton' needs tensors on a GPU"):
        call(loss)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"adv": None}, TypeError, "needs adv"),
        ({"ref": torch.zeros(2, 3)}, TypeError, "has no input ref"),
        ({"adv": torch.zeros(3)}, ValueError, r"adv is declared \[B\]; it has shape \[3\]"),
        ({"adv": torch.zeros(2, 3)}, ValueError, r"this batch needs \[2\]"),
        ({"behavior": torch.zeros(2)}, ValueError, r"this batch needs \[2, 3\]"),
        ({"mask": torch.ones(2, 3)}, TypeError, "mask is torch.float32"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, ValueError, "mask has shape"),
        ({"labels": torch.zeros(2, 4, dtype=torch.int64)}, ValueError, "do not fit labels"),
        ({"labels": torch.zeros(2, 3)}, TypeError, "labels must be token ids"),
        ({"num_sequences": 2}, TypeError, "needs num_tokens of the whole step"),
        (
            {"logits": torch.zeros(2, 3, 5).long()},
            TypeError,
            "logits is torch.int64; it must be float32,",
        ),
        ({"logits": torch.zeros(2, 2, 3, 5)}, ValueError, r"\[B, T, V\] and \[B, T\]"),
        (
            {"labels": torch.full((2, 3), 5)},
            IndexError,
            "range from 5 to 5, but the vocabulary has 5",
        ),
        ({"labels": torch.full((2, 3), -1)}, IndexError, r"ignore_index \(-100\) or the mask"),
        ({"temperature": 0.0}, ValueError, "temperature is 0.0; it must be a number above 0"),
        ({"adv": [1.0, -1.0]}, TypeError, "adv is a list, but a tensor is needed"),
        ({"logits": [[1.0]]}, TypeError, "logits is a list, but a tensor is needed"),
        ({"labels": [[1, 2]]}, TypeError, "labels is a list, but a tensor is needed"),
        ({"mask": [[True]]}, TypeError, "mask is a list, but a tensor is needed"),
        ({"num_tokens": "6"}, TypeError, "num_tokens is '6', but a number or a tensor is needed"),
        (
            {"labels": torch.zeros(2, 3).long().to("meta")},
            ValueError,
            "labels is on meta, but logits",
        ),
    ],
)
def test_mistakes_in_a_call(changes, error, message):
    with pytest.raises(error, match=message):
        call(forgedsl.compile_loss(TEXT), **changes)


@pytest.mark.parametrize(
    ("hidden", "weight", "error", "message"),
    [
        ((2, 4, 6), (5, 6), ValueError, r"hidden \[2, 4, 6\] does not fit labels \[2, 3\]"),
        (
            (2, 3, 6),
            (5, 7),
            ValueError,
            r"weight \[5, 7\] does not fit hidden \[2, 3, 6\]: its shape must be \[V, H\]",
        ),
        ((2, 3, 6), (5, 6, 1), ValueError, r"weight \[5, 6, 1\] does not fit"),
    ],
)
def test_mistakes_in_a_linear_call(hidden, weight, error, message):
    loss = forgedsl.compile_loss("sft")
    labels = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(error, match=message):
        loss.linear(hidden=torch.zeros(hidden), weight=torch.zeros(weight), labels=labels)


def test_backward_adds_to_gradients(losses):
    """Microbatches accumulate, a loss may be used in a sum, and backward may run twice."""
    loss = losses.standard("grpo")
    case = losses.make_case(loss)

    def evaluate():
        return loss.linear(hidden=case.hidden, weight=case.weight, **case.batch, **case.inputs).loss

    once = losses.gradients(evaluate(), case)
    evaluate().backward()
    (2 * evaluate() - 0.5 * evaluate()).backward()
    both = evaluate()
    both.backward(retain_graph=True)
    both.backward()
    torch.testing.assert_close(case.hidden.grad, 4.5 * once[0])
    torch.testing.assert_close(case.weight.grad, 4.5 * once[1])


def test_there_is_no_second_derivative(losses):
    loss = losses.standard("sft")
    case = losses.make_case(loss)
    value = loss.linear(hidden=case.hidden, weight=case.weight, **case.batch).loss
    (gradient,) = torch.autograd.grad(value, case.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


def test_only_what_needs_a_gradient_gets_one(losses):
    loss = losses.standard("gspo")
    case = losses.make_case(loss, noise=1e-4)
    call = {**case.batch, **case.inputs}
    want = losses.gradients(loss.linear(hidden=case.hidden, weight=case.weight, **call).loss, case)
    frozen = loss.linear(hidden=case.hidden.detach(), weight=case.weight, **call).loss
    torch.testing.assert_close(torch.autograd.grad(frozen, case.weight)[0], want[1])
    frozen = loss.linear(hidden=case.hidden, weight=case.weight.detach(), **call).loss
    torch.testing.assert_close(torch.autograd.grad(frozen, case.hidden)[0], want[0])
    with torch.no_grad():
        assert not loss.linear(hidden=case.hidden, weight=case.weight, **call).loss.requires_grad


def test_packed_sequences_need_seq_id():
    with pytest.raises(TypeError, match="seq_id"):
        call(
            forgedsl.compile_loss(TEXT),
            logits=torch.randn(6, 5),
            labels=torch.zeros(6, dtype=torch.int64),
            behavior=torch.zeros(6),
        )


def test_packed_tokens_need_no_sequences(losses):
    """Where a loss knows tokens only."""
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 5, generator=rng), torch.randint(5, (6,), generator=rng)
    for name in losses.names:
        loss = losses.standard(name)
        call = {name: torch.zeros(6) for name in loss.input_names}
        if name in ("sft", "dft", "sft_smoothed", "ppo_critic"):
            assert torch.isfinite(loss(logits=logits, labels=labels, **call).loss)
        else:
            with pytest.raises(TypeError, match="seq_id"):
                loss(logits=logits, labels=labels, **call)


def test_odd_sequences_are_no_pairs():
    loss = forgedsl.compile_loss("dpo")
    with pytest.raises(ValueError, match="3 sequences do not form pairs"):
        loss(
            logits=torch.randn(3, 2, 5),
            labels=torch.zeros(3, 2, dtype=torch.int64),
            ref=torch.zeros(3, 2),
        )


def test_ignore_index_is_a_mask():
    loss = forgedsl.compile_loss(TEXT)
    labels = torch.tensor([[1, 2, 3], [4, 0, 1]])
    keep = torch.tensor([[True, False, True], [True, True, False]])
    masked = call(loss, labels=labels, mask=keep).loss
    ignored = call(loss, labels=torch.where(keep, labels, -100)).loss
    torch.testing.assert_close(masked, ignored)


def test_masks_of_its_own_are_counted_over_the_step():
    text = (
        "loss part(logprob: diff [B, T] f32, learn: [B, T] bool, weight: [B] f32, "
        "mask: [B, T] bool) {\n"
        "  w = weight - batch_mean(weight, mask)\n"
        "  minimize token_mean(-w * logprob, mask and learn)\n"
        "}\n"
    )
    loss = forgedsl.compile_loss(text)
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 3, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (4, 3), generator=rng)
    learn = torch.rand(4, 3, generator=rng) > 0.4
    weight = torch.randn(4, generator=rng, dtype=torch.float64)
    whole = loss(logits=logits, labels=labels, learn=learn, weight=weight).loss
    halves = [slice(0, 2), slice(2, 4)]
    counts = [loss.totals(labels=labels[h], learn=learn[h], weight=weight[h]) for h in halves]
    totals = {name: counts[0][name] + counts[1][name] for name in counts[0]}
    parts = [
        loss(logits=logits[h], labels=labels[h], learn=learn[h], weight=weight[h], totals=totals)
        for h in halves
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), whole, **EXACT)
    with pytest.raises(TypeError, match="also needs"):
        loss(logits=logits, labels=labels, learn=learn, weight=weight, num_tokens=12)


def test_token_logprobs_are_those_of_the_loss():
    rng = torch.Generator().manual_seed(2)
    hidden, weight = torch.randn(9, 4, generator=rng), torch.randn(7, 4, generator=rng)
    labels = torch.randint(7, (9,), generator=rng)
    want = torch.log_softmax(hidden @ weight.t() / 0.5, 1).gather(1, labels.view(-1, 1)).squeeze(1)
    got = token_logprobs(hidden, weight, labels, 0.5, chunk_rows=4)
    torch.testing.assert_close(got, want)


def test_tracebacks_show_the_generated_line():
    import traceback

    loss = forgedsl.compile_loss(TEXT)
    try:
        loss.module.loss(object())
    except AttributeError:
        assert "x.logprob - x.behavior" in traceback.format_exc()
    else:
        pytest.fail("an object has no log-probs")
