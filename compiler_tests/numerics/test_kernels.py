"""Generated Triton kernels under the interpreter: they agree with autograd in float64."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from tolerance import EXACT

import forgedsl
from forgedsl_runtime.losses import function, ones

TOKENS = "logprob: diff [B, T] f32, adv: [B] f32, mask: [B, T] bool"


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Kernels are loaded on first use and see this then."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def kernels(standard_loss):
    """The standard loss by its kernels."""
    return standard_loss.using("triton")


def near(name):
    """Old log-probs so near that sequence-level clips at 3e-4 leave gradient."""
    return 1e-4 if name.startswith(("gspo", "luspo")) else 0.3


@pytest.mark.cover
@pytest.mark.parametrize("call", [{}, {"chunk_rows": 7}, {"chunk_rows": 7, "compact": True}])
def test_linear_agrees_with_autograd(standard_loss, kernels, losses, call):
    case = losses.make_case(standard_loss, noise=near(standard_loss.name))
    want = losses.reference(standard_loss, case)
    got = kernels.linear(
        hidden=case.hidden, weight=case.weight, temperature=0.7, **case.batch, **case.inputs, **call
    ).loss
    torch.testing.assert_close(got, want, **EXACT)
    torch.testing.assert_close(
        losses.gradients(3 * got, case), losses.gradients(3 * want, case), **EXACT
    )


def test_logits_agree_with_torch(standard_loss, kernels, losses):
    case = losses.make_case(standard_loss, seed=2, noise=near(standard_loss.name))
    call = {"temperature": 0.7, **case.batch, **case.inputs}
    got = kernels(logits=case.hidden @ case.weight.t(), **call)
    want = standard_loss(logits=case.hidden @ case.weight.t(), **call)
    torch.testing.assert_close(got.metrics, want.metrics, **EXACT)
    torch.testing.assert_close(
        losses.gradients(got.loss, case), losses.gradients(want.loss, case), **EXACT
    )


@pytest.mark.full
def test_padded_sequences(standard_loss, kernels, losses):
    case = losses.make_case(standard_loss, seed=3, lengths=(4, 4, 4, 4), noise=1e-4)
    inputs = {
        name: value.view(4, 4) if value.numel() == 16 else value
        for name, value in case.inputs.items()
    }
    call = {"labels": case.labels.view(4, 4), "mask": case.mask.view(4, 4), **inputs}
    hidden = case.hidden.view(4, 4, -1)
    got = kernels.linear(hidden=hidden, weight=case.weight, chunk_rows=9, **call).loss
    want = standard_loss.linear(hidden=hidden, weight=case.weight, **call).loss
    torch.testing.assert_close(got, want, **EXACT)
    torch.testing.assert_close(losses.gradients(got, case), losses.gradients(want, case), **EXACT)


@pytest.mark.full
def test_the_kernel_that_ran_is_named(kernels, losses):
    case = losses.make_case(kernels)
    call = {**case.batch, **case.inputs}
    logits = (case.hidden @ case.weight.t()).detach()
    trained = kernels(logits=logits.requires_grad_(), **call)
    local = kernels.phase == "token-local"
    assert trained.kernel == f"triton/logits/{'fused' if local else 'two-phase'}"
    assert kernels(logits=logits.detach(), **call).kernel == "triton/logits/statistics"


def test_in_place_the_gradient_replaces_the_logits(losses):
    loss = losses.standard("dapo").using("triton")
    case = losses.make_case(loss)
    call = {**case.batch, **case.inputs}
    logits = (case.hidden @ case.weight.t()).detach()
    apart, taken = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(logits=apart, **call).loss, apart)
    out = loss(logits=taken, inplace=True, **call)
    (got,) = torch.autograd.grad(out.loss, taken)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(taken.detach(), want)


@pytest.mark.full
def test_masked_rows_may_hold_nan(kernels, losses):
    case = losses.make_case(kernels, seed=5)
    call = {**case.batch, **case.inputs}
    logits = (case.hidden @ case.weight.t()).detach()
    clean, poisoned = logits.clone(), logits.clone()
    poisoned[~case.mask] = torch.nan
    (want,) = torch.autograd.grad(kernels(logits=clean.requires_grad_(), **call).loss, clean)
    (got,) = torch.autograd.grad(kernels(logits=poisoned.requires_grad_(), **call).loss, poisoned)
    torch.testing.assert_close(got, want)
    assert (got[~case.mask] == 0).all()


@pytest.mark.parametrize("name", ["dapo", "gspo", "dpo"])
@pytest.mark.parametrize("ignore", [-100, 3])
def test_rows_that_do_not_count(losses, name, ignore):
    """By the mask or by their label, which kernels read for themselves; strides are any."""
    loss = losses.standard(name)
    case = losses.make_case(loss, seed=6, noise=near(name))
    logits = (case.hidden @ case.weight.t()).detach()
    labels = case.labels.clone()
    labels[::4] = ignore
    keep = case.mask & (labels != ignore)
    want_call = {"labels": case.labels, "mask": keep, "seq_id": case.seq_id, **case.inputs}
    want = loss(logits=logits.clone().requires_grad_(), **want_call)
    for mask in (case.mask, None):
        marked = labels if mask is not None else labels.masked_fill(~case.mask, ignore)
        call = {"labels": marked, "mask": mask, "seq_id": case.seq_id, **case.inputs}
        wide = {
            key: value if value is None else torch.stack([value, value], -1)[..., 0]
            for key, value in call.items()
        }
        got = loss.using("triton")(logits=logits, ignore_index=ignore, **wide)
        torch.testing.assert_close(got.loss, want.loss, **EXACT)
        torch.testing.assert_close(got.metrics, want.metrics, **EXACT)


@pytest.mark.parametrize("masked", [False, True])
def test_no_pass_over_the_labels_comes_first(losses, monkeypatch, masked):
    """Which rows count is found by the kernels alone where the counts of the step are given."""
    monkeypatch.setattr(function, "check_labels", lambda *_: None)  # on a CPU only
    loss = losses.standard("dapo").using("triton")
    case = losses.make_case(loss)
    logits = (case.hidden @ case.weight.t()).detach()
    tensors = {**case.batch, **case.inputs, "mask": case.mask if masked else None}
    run = loss.make_run(
        "logits", (logits,), tensors, {"num_tokens": 20.0}, 1.0, {"ignore_index": -100}
    )
    run.forward((True,))
    assert "valid" not in vars(run.rows)


@pytest.mark.parametrize("vocabulary", [1, 15, 1024, 1025])
@pytest.mark.parametrize("shift", [0.0, -300.0])
def test_extreme_rows(vocabulary, shift):
    text = f"loss f({TOKENS}) {{ minimize token_mean(-adv * logprob, mask) }}"
    loss = forgedsl.compile_loss(text, backend="triton")
    rng = torch.Generator().manual_seed(vocabulary)
    logits = 30 * torch.randn(4, vocabulary, generator=rng, dtype=torch.float64) + shift
    logits[1, : vocabulary - 1] = -torch.inf
    labels = torch.tensor([0, vocabulary - 1, vocabulary // 2, vocabulary - 1])
    adv = torch.randn(1, generator=rng, dtype=torch.float64)
    ours, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    out = loss(logits=ours, labels=labels, seq_id=torch.zeros(4, dtype=torch.int64), adv=adv)
    chosen = torch.log_softmax(plain, 1).gather(1, labels.unsqueeze(1))
    (-adv * chosen).mean().backward()
    out.loss.backward()
    torch.testing.assert_close(ours.grad, plain.grad.nan_to_num(0.0), **EXACT)


def test_lengths_and_counts_do_not_recompile(losses):
    """Whatever varies from batch to batch is an argument, not a constant of the kernel."""
    fixed = {"V", "BLOCK", "ACC", "PADDED", "OVERLAP", "NARROW", "INNER", "SLOTS", "HELD", "LEAD"}
    inside = {"PARTS", "p", "x", "TAIL", "PACKED", "WORDS", "layout", "threads"}
    """of functions inside kernels"""
    texts = [losses.standard(name).kernels.text for name in losses.names]
    constants = {
        name for text in texts for name in re.findall(r"(\w+): [tg]l.constexpr[,\n)]", text)
    }
    assert constants <= fixed | inside


@pytest.mark.parametrize("weight", [1.0, -0.5])
def test_a_gradient_is_rescaled_in_several_turns(weight):
    from forgedsl_runtime.losses.rescale import BLOCK, rescale

    gradient = torch.arange(2.0 * BLOCK + 3)
    want = weight * gradient
    rescale(gradient, torch.tensor(weight))
    assert torch.equal(gradient, want)


def test_only_kernels_that_wait_overlap(losses):
    """A kernel without OVERLAP has no wait in it; it must start when the one before has ended."""
    kernels, options = losses.standard("dapo").using("triton").kernels, []

    class Kernel:
        def __init__(self, *names):
            self.arg_names = names

        def __getitem__(self, grid):
            return lambda **given: options.append(given.get("launch_pdl"))

    vars(kernels)["module"] = SimpleNamespace(
        waits=Kernel("labels", "OVERLAP"), plain=Kernel("labels")
    )
    for name, overlap in (("waits", True), ("waits", False), ("plain", True)):
        kernels.launch(name, 1, {"labels": None, "OVERLAP": overlap})
    assert options == [True, None, None]


def test_backward_hands_the_gradient_over_once(losses):
    loss = losses.standard("dapo").using("triton")
    case = losses.make_case(loss)
    out = loss.linear(hidden=case.hidden, weight=case.weight, **case.batch, **case.inputs)
    torch.autograd.grad(out.loss, case.hidden, retain_graph=True)
    with pytest.raises(RuntimeError, match="ran a second time"):
        torch.autograd.grad(out.loss, case.hidden)


@pytest.mark.parametrize("form", ["linear", "logits"])
def test_backward_of_an_output_multiplies_by_nothing(losses, monkeypatch, form):
    """`out.backward()` gives the gradients of `out.loss.backward()` without the kernel for it."""
    loss = losses.standard("dapo").using("triton")
    case = losses.make_case(loss)
    weight = case.weight.detach()

    def gradient(backward):
        hidden = case.hidden.detach().requires_grad_()
        if form == "linear":
            out = loss.linear(hidden=hidden, weight=weight, **case.batch, **case.inputs)
        else:
            out = loss(logits=hidden @ weight.t(), **case.batch, **case.inputs)
        backward(out)
        return hidden.grad

    want = gradient(lambda out: out.loss.backward())
    doubled = gradient(lambda out: (2 * out.loss).backward())
    monkeypatch.setattr("forgedsl_runtime.losses.rescale._rescale", None)
    assert torch.equal(gradient(lambda out: out.backward()), want)
    assert torch.equal(doubled, 2 * want)


def test_a_one_that_was_written_to_is_one_no_more():
    """A hook may multiply the gradient of a loss in place."""
    first = ones.one(torch.float32, torch.device("cpu"))
    assert ones.is_one(first)
    assert not ones.is_one(torch.ones(()))
    first.mul_(3.0)
    assert not ones.is_one(first)
    second = ones.one(torch.float32, torch.device("cpu"))
    assert second == 1.0
    assert ones.is_one(second)


@pytest.mark.parametrize("name", ["grpo_entropy", "gspo", "sft_smoothed"])
def test_a_row_has_the_same_bits_in_any_batch(losses, name):
    loss = losses.standard(name).using("triton")
    case = losses.make_case(loss, noise=near(name), dtype=torch.float32)
    logits = (case.hidden @ case.weight.t()).detach()
    counts = {"num_tokens": 20.0, "num_sequences": 4.0, "temperature": 0.7}

    def gradient(sequences):
        rows = torch.isin(case.seq_id, torch.tensor(sequences))
        numbers = torch.searchsorted(torch.tensor(sequences), case.seq_id[rows])
        inputs = {
            key: value[rows] if value.shape == rows.shape else value[sequences]
            for key, value in case.inputs.items()
        }
        part = logits[rows].requires_grad_()
        out = loss(logits=part, labels=case.labels[rows], mask=case.mask[rows], seq_id=numbers,
                   **inputs, **counts)  # fmt: skip
        return torch.autograd.grad(out.loss, part)[0]

    whole = gradient([0, 1, 2, 3])
    for sequences in ([1], [2, 3], [0, 2]):
        rows = torch.isin(case.seq_id, torch.tensor(sequences))
        assert torch.equal(gradient(sequences), whole[rows])
