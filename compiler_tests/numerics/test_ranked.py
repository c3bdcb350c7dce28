"""Linear losses without the products of rows that have no gradient: which those are, and that
nothing else changes."""

from __future__ import annotations

import random

import pytest
import random_losses
import torch
from tolerance import EXACT

import forgedsl
from forgedsl_runtime.losses.onchip import OnChipEvaluation
from forgedsl_runtime.losses.product import Product
from forgedsl_runtime.losses.ranked import OnHost, RankedEvaluation

FIELDS = (
    "logprob: diff [B, T] f32, entropy: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, "
    "weight: [B, T] f32, kept: [B, T] bool, mask: [B, T] bool"
)
PAIRED = "logprob: diff [P, T] f32, ref: [P, T] f32, adv: [P] f32, mask: [P, T] bool"
SHIPPED = (
    ("sft", {}, {}),
    ("dft", {}, {}),
    ("reinforce", {}, {"adv": "seq"}),
    ("reinforce", {"entropy_coef": 0.01}, {}),
    ("ppo", {}, {"adv": "seq"}),
    ("ppo", {"dual_clip": 3.0}, {"adv": "seq"}),
    ("ppo_critic", {}, {"adv": "row"}),
    ("grpo", {}, {}),
    ("grpo", {"beta": 0.0}, {"adv": "seq"}),
    ("dapo", {}, {"adv": "seq"}),
    ("dapo", {"entropy_coef": 0.01}, {}),
    ("cispo", {}, {"adv": "seq"}),
    ("sapo", {}, {"adv": "seq"}),
    ("dppo", {}, {}),
    ("tis_ppo", {}, {"adv": "seq"}),
    ("icepop", {}, {"adv": "seq"}),
    ("gspo", {}, {}),
    ("dpo", {}, {}),
)
INVENTED = (
    ("adv * logprob", {"adv": "seq"}),
    ("adv * weight * logprob", {"adv": "seq", "weight": "row"}),
    ("(adv + weight) * logprob", {}),
    ("(adv + 1.0) * logprob", {}),
    ("-adv ** 2 * logprob - 0.1 * weight * entropy", {}),
    ("adv * logprob - 0.1 * adv * entropy", {"adv": "seq"}),
    ("logprob if kept else 0.0", {"kept": "row"}),
    ("0.0 if kept else logprob", {}),
    ("logprob if adv > 0 else 0.0", {"adv": "seq"}),
    ("logprob if adv >= 0 else 0.0", {}),
    ("max(adv * logprob, weight * logprob)", {}),
    ("min(adv, 0.5) * logprob", {"adv": "seq"}),
    ("max(adv, 0.5) * logprob", {}),
    ("exp(clamp(adv * logprob, -2.0, 2.0))", {"adv": "seq"}),
    ("stop(adv * logprob) * logprob", {"adv": "seq"}),
    ("tanh(adv) * abs(weight) * logprob", {"adv": "seq", "weight": "row"}),
    ("sigmoid(adv) * logprob", {}),
    ("adv / weight * logprob", {"adv": "seq"}),
    ("adv * (logprob / adv)", {}),
    ("log(adv) * logprob", {}),
    ("(adv - 1.0) ** 0.5 * logprob", {}),
    ("(adv - batch_mean(adv, mask)) * logprob", {}),
    ("sum(weight, T, mask) * adv * logprob", {"adv": "seq"}),
    ("mean(weight * adv, T, mask) * logprob", {}),
)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Kernels are loaded on first use and see this then."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def loss_of(value):
    return forgedsl.compile_loss(
        f"loss f({FIELDS}) {{ minimize token_mean({value}, mask) }}", backend="triton"
    )


@pytest.mark.parametrize(
    ("name", "params", "silent"),
    [pytest.param(*row, marks=pytest.mark.full if i % 3 else ()) for i, row in enumerate(SHIPPED)],
)
def test_what_silences_a_row_of_a_shipped_loss(name, params, silent):
    loss = forgedsl.compile_loss(name, params=params, backend="triton")
    assert silent == loss.kernels.module.SILENT


@pytest.mark.parametrize(("value", "silent"), INVENTED)
def test_what_silences_a_row_of_an_invented_loss(value, silent):
    assert silent == loss_of(value).kernels.module.SILENT


def test_an_input_of_pairs_silences_both_sequences(losses, work):
    gain = "adv * (sum(logprob.chosen, T, mask.chosen) - sum(logprob.rejected, T, mask.rejected))"
    text = f"loss f({PAIRED}) {{ minimize pair_mean({gain}) }}"
    loss = forgedsl.compile_loss(text, backend="triton")
    assert loss.kernels.module.SILENT == {"adv": "pair"}
    case = losses.make_case(loss, lengths=(5, 3, 6, 4))
    case.inputs["adv"] = torch.tensor([0.0, -1.3], dtype=torch.float64)
    case.mask[:] = True
    plain, compact = both(loss, losses, case)
    torch.testing.assert_close(compact, plain, **EXACT)
    assert work["push"] == [(0, 18), (0, 10)]


# ---- the same results


def make(loss, losses, *, silent, seed=0, lengths=(9, 12, 7, 11)):
    """A batch whose sequences numbered in `silent` have no advantage, nor have some tokens."""
    case = losses.make_case(loss, seed=seed, lengths=lengths)
    wide = torch.randn(70, case.weight.shape[1], dtype=case.weight.dtype)
    case.weight = wide.requires_grad_()
    numbers = torch.tensor(silent, dtype=torch.int64)
    for name, index in loss.kernels.module.SILENT.items():
        rows = torch.isin(case.seq_id, numbers)
        rows[::5] = True
        case.inputs[name][rows if index == "row" else numbers] = 0.0
    return case


def both(loss, losses, case, *, poison=True, **call):
    """Loss, metrics and gradients: of all rows, and compact, where masked rows hold NaN."""
    found = []
    for compact in (False, True):
        hidden = case.hidden
        if compact and poison:
            counts = case.mask & (case.labels != -100)
            hidden = torch.where(counts.unsqueeze(1), hidden, torch.nan)
        given = {**case.batch, **case.inputs, **call}
        out = loss.linear(hidden=hidden, weight=case.weight, compact=compact, **given)
        assert out.kernel.startswith("triton/linear/onchip")
        found.append((out.loss.detach(), out.metrics, losses.gradients(out.loss, case)))
    return found


@pytest.mark.cover
@pytest.mark.parametrize("silent", [[], [1], [0, 2, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("chunk", [7, 20, None])
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_silent_rows_are_left_out_exactly(losses, silent, chunk):
    loss = losses.standard("dapo").using("triton")
    case = make(loss, losses, silent=silent)
    plain, compact = both(loss, losses, case, chunk_rows=chunk)
    torch.testing.assert_close(compact, plain, **EXACT)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "params"),
    [("grpo", {"beta": 0.0}), ("grpo", {}), ("ppo_critic", {}), ("sft", {"label_smoothing": 0.1}),
     ("reinforce", {"entropy_coef": 0.02}), ("tis_ppo", {})],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_other_losses(losses, name, params):
    """With sums that rows need, an advantage for each token, no silent input, a tilt."""
    loss = forgedsl.compile_loss(name, params=params, backend="triton")
    case = make(loss, losses, silent=[0, 2], seed=3)
    case.labels[::6] = -100
    poison = name != "ppo_critic"  # its value is made of the hidden states
    plain, compact = both(loss, losses, case, poison=poison, chunk_rows=7)
    torch.testing.assert_close(compact, plain, **EXACT)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_padded_rows(losses):
    loss = forgedsl.compile_loss("grpo", params={"beta": 0.0}, backend="triton")
    case = make(loss, losses, silent=[2], seed=1, lengths=(8, 8, 8, 8))
    shaped = {
        name: value.view(4, 8) if value.numel() == 32 else value
        for name, value in {**case.batch, **case.inputs}.items()
    }
    shaped["seq_id"] = None
    plain, compact = both(loss, losses, case, poison=False, chunk_rows=7)
    hidden = torch.where(case.mask.unsqueeze(1), case.hidden, torch.nan).view(4, 8, -1)
    out = loss.linear(hidden=hidden, weight=case.weight, compact=True, chunk_rows=7, **shaped)
    found = out.loss.detach(), out.metrics, losses.gradients(out.loss, case)
    torch.testing.assert_close(found, plain, **EXACT)
    torch.testing.assert_close(compact, plain, **EXACT)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("masked", ["all", "none"])
def test_masks(losses, masked):
    loss = losses.standard("dapo").using("triton")
    case = make(loss, losses, silent=[1])
    case.mask[:] = masked == "none"
    plain, compact = both(loss, losses, case, chunk_rows=20)
    torch.testing.assert_close(compact, plain, **EXACT)


def test_no_rows_at_all(losses):
    loss = losses.standard("dapo").using("triton")
    hidden, weight = (torch.zeros(n, 6, requires_grad=True) for n in (0, 70))
    none = torch.zeros(0, dtype=torch.int64)
    out = loss.linear(hidden=hidden, weight=weight, labels=none, seq_id=none, compact=True)
    out.loss.backward()
    assert out.loss == 0.0
    assert not weight.grad.any()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_random_losses_times_an_advantage(losses, seed):
    choose = random.Random(seed).choice
    value = random_losses.expression(choose, random_losses.FORMS, 3)
    fields = random_losses.FIELDS.format("B")
    text = f"loss f({fields}) {{ minimize seq_mean(adv * ({value} + logprob), mask) }}"
    loss = forgedsl.compile_loss(text, backend="triton")
    assert loss.kernels.module.SILENT.get("adv") == "seq"
    case = make(loss, losses, silent=[0, 3], seed=seed)
    plain, compact = both(loss, losses, case, chunk_rows=20)
    torch.testing.assert_close(compact, plain, **EXACT)


# ---- what is computed


@pytest.fixture
def work(monkeypatch):
    """The rows of each product: of weights, of statistics alone, of gradients."""
    found = {"weights": [], "statistics": [], "push": []}

    def record(owner, name, key, at):
        kept = getattr(owner, name)

        def recorded(self, *args):
            found[key].append((args[at].start, args[at].stop))
            return kept(self, *args)

        monkeypatch.setattr(owner, name, recorded)

    record(Product, "weights", "weights", 0)
    record(Product, "statistics", "statistics", 0)
    record(OnChipEvaluation, "_push", "push", 1)
    monkeypatch.setattr(torch.Tensor, "nonzero", lambda *_: pytest.fail("waits for the device"))
    return found


def test_rows_go_into_the_products_that_they_need(losses, work):
    loss = losses.standard("dapo").using("triton")
    case = make(loss, losses, silent=[1, 3])
    case.mask[:] = True
    case.mask[:6] = False  # 3 + 7 rows with gradient, 12 + 11 silent
    call = {**case.batch, **case.inputs, "num_tokens": 33.0}
    loss.linear(hidden=case.hidden, weight=case.weight, compact=True, chunk_rows=8, **call)
    assert work == {
        "weights": [(0, 8), (8, 16)],
        "statistics": [(16, 24), (24, 32), (32, 33)],
        "push": [(0, 8), (8, 10)],
    }


def test_without_gradient_there_are_no_weights(losses, work):
    loss = losses.standard("dapo").using("triton")
    case = make(loss, losses, silent=[1, 3])
    case.mask[:] = True
    case.mask[:6] = False
    call = {**case.batch, **case.inputs, "num_tokens": 33.0}
    with torch.no_grad():
        loss.linear(hidden=case.hidden, weight=case.weight, compact=True, chunk_rows=20, **call)
    assert work == {"weights": [], "statistics": [(0, 20), (20, 33)], "push": []}


def test_nobody_asks_for_the_sizes_before_the_first_chunk_is_under_way(losses, work, monkeypatch):
    read, before = OnHost.__call__, []

    def noted(self):
        before.append([*work["weights"]])
        return read(self)

    monkeypatch.setattr(OnHost, "__call__", noted)
    loss = losses.standard("dapo").using("triton")
    case = make(loss, losses, silent=[1])
    call = {**case.batch, **case.inputs, "num_tokens": 33.0}
    loss.linear(hidden=case.hidden, weight=case.weight, compact=True, chunk_rows=20, **call)
    assert before[0] == [(0, 20)]


@pytest.mark.parametrize(
    ("name", "more", "ranked"),
    [("dapo", {}, True), ("sft", {}, True), ("gspo", {}, False),
     ("dapo", {"compact": False}, False), ("dapo", {"workspace": 1 << 20}, False),
     ("dapo", {"logits_dtype": torch.float64}, False)],
)  # fmt: skip
def test_where_rows_are_ranked(losses, name, more, ranked):
    loss = losses.standard(name).using("triton")
    case = losses.make_case(loss)
    sources, options = (case.hidden, case.weight), {"ignore_index": -100, "compact": True, **more}
    run = loss.make_run("linear", sources, {**case.batch, **case.inputs}, {}, 1.0, options)
    assert isinstance(run, RankedEvaluation) == ranked


def test_a_rerun_has_the_same_bits(losses):
    loss = losses.standard("dapo").using("triton")
    case = make(loss, losses, silent=[1])
    first, second = (both(loss, losses, case, chunk_rows=7)[1] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)
