"""The counts of a call without any: what the kernel finds, and that it is all that is launched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from forgedsl_runtime.losses import counts, function
from forgedsl_runtime.losses.batch import Rows
from forgedsl_runtime.losses.counts import row_counts
from forgedsl_runtime.losses.kernels import Kernels

IGNORED = 3
FREE = {
    "alias", "detach", "empty", "empty_like", "select", "slice", "unbind", "view", "_unsafe_view",
}  # fmt: skip
"""what launches nothing on a device"""


@pytest.fixture(scope="module", autouse=True)
def interpreter():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


def rows_of(lengths, labels, mask=None, *, padded=False, paired=False, spare=0, **more):
    """Rows of sequences of these lengths, after which come `spare` empty ones."""
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=int))
    given = {"dtype": torch.float32, "ignore_index": IGNORED, **more}
    return Rows(
        index=None, num_rows=len(labels), labels=labels, mask=mask, tokens={}, sequences={},
        packed_id=None if padded else ids, seq_len=lengths[0] if padded and lengths else 0,
        num_sequences=len(lengths) + spare, paired=paired, **given,
    )  # fmt: skip


def expected(lengths, labels, mask, paired):
    """The rows that count, and the sequences that have one: of a pair both or none."""
    ids = [number for number, length in enumerate(lengths) for _ in range(length)]
    kept = [True] * len(ids) if mask is None else mask.tolist()
    valid = [keep and label != IGNORED for keep, label in zip(kept, labels.tolist(), strict=True)]
    held = {number for number, ok in zip(ids, valid, strict=True) if ok}
    return sum(valid), sum(number ^ 1 in held for number in held) if paired else len(held)


@st.composite
def batches(draw):
    padded, paired = draw(st.booleans()), draw(st.booleans())
    count = draw(st.integers(0, 7)) * 2 if paired else draw(st.integers(0, 14))
    length = st.integers(0, 11)
    lengths = [draw(length)] * count if padded else [draw(length) for _ in range(count)]
    if padded and lengths[:1] == [0]:
        padded = False  # no rows: there is nothing that could be padded
    total = sum(lengths)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from([torch.int64, torch.int32]))
    labels = torch.randint(4, (total,), generator=rng, dtype=kind)
    share = draw(st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]))
    mask = None if share is None else torch.rand(total, generator=rng) < share
    spare = 0 if padded else 2 * draw(st.integers(0, 5))
    return lengths, labels, mask, padded, paired, spare


@settings(max_examples=20, deadline=None)
@given(batch=batches(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_what_is_counted(batch, dtype):
    lengths, labels, mask, padded, paired, spare = batch
    more = {"padded": padded, "paired": paired, "spare": spare, "dtype": dtype}
    tokens, sequences = expected(lengths, labels, mask, paired)
    kernels, rows = Kernels("any", ""), rows_of(lengths, labels, mask, **more)
    for _ in range(2):  # a call leaves its counters as it found them
        found = row_counts(kernels, rows, sequences=True)
        assert found == {"num_tokens": tokens, "num_sequences": sequences}
        assert row_counts(kernels, rows, sequences=False) == {"num_tokens": tokens}
        assert all(value.dtype == dtype and value.dim() == 0 for value in found.values())
    assert not any(word.any() for word in kernels.counters.values())


@pytest.mark.parametrize("lengths", [[1] * 999, [999], [500, 499], [0, 989, 0, 0, 10]])
def test_many_rows(lengths):
    rng = torch.Generator().manual_seed(0)
    labels, mask = torch.randint(9, (999,), generator=rng), torch.rand(999, generator=rng) < 0.9
    tokens, sequences = expected(lengths, labels, mask, False)
    found = row_counts(Kernels("any", ""), rows_of(lengths, labels, mask), sequences=True)
    assert found == {"num_tokens": tokens, "num_sequences": sequences}


@pytest.mark.parametrize("kept", [2**24 + 1, 2**24 + 3, 2**31 - 1])
def test_large_counts_are_rounded_once(kept):
    """Other programs found that many; the last finds nothing more."""
    kernels, rows = Kernels("any", ""), rows_of([], torch.zeros(0, dtype=torch.int64))
    kernels.counter(rows.labels.device, "counted", 2, dtype=torch.int64)[0] = kept
    assert row_counts(kernels, rows, sequences=False)["num_tokens"] == torch.tensor(kept).float()


@pytest.mark.parametrize("name", ["dapo", "grpo_entropy", "gspo", "dpo", "sft_smoothed"])
@pytest.mark.parametrize("padded", [True, False])
def test_a_call_without_counts_has_the_bits_of_one_with_them(losses, name, padded):
    loss = losses.standard(name).using("triton")
    case = losses.make_case(loss, lengths=(4, 4, 4, 4), noise=1e-4, dtype=torch.float32)
    case.mask[4:8] = False
    tokens, sequences = expected([4] * 4, case.labels, case.mask & (case.labels != 3), loss.paired)
    call = {**case.batch, **case.inputs, "ignore_index": IGNORED}
    logits = (case.hidden @ case.weight.t()).detach()
    if padded:
        del call["seq_id"]
        call = {k: v.view(4, 4) if getattr(v, "shape", ()) == (16,) else v for k, v in call.items()}
        logits = logits.view(4, 4, -1)
    results = []
    for given_counts in ({}, {"num_tokens": float(tokens), "num_sequences": float(sequences)}):
        source = logits.clone().requires_grad_()
        out = loss(logits=source, **call, **given_counts)
        (gradient,) = torch.autograd.grad(out.loss, source)
        results.append((out.loss, gradient, *out.metrics.values()))
    assert all(map(torch.equal, *results))


class Operators(TorchDispatchMode):
    """The names of all operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Launch:
    """A kernel that is not run."""

    def __init__(self, name, launched):
        self.name, self.launched = name, launched

    def __getitem__(self, grid):
        return lambda *args, **options: self.launched.append(self.name)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [("dapo", ["fused", "sequences"]), ("gspo", ["statistics", "sequences", "apply"])],
)
def test_a_call_without_counts_launches_one_kernel_more(losses, monkeypatch, name, kernels):
    loss = losses.standard(name).using("triton")
    case = losses.make_case(loss, lengths=(4, 4, 4, 4), dtype=torch.float32)
    batch = {"labels": case.labels, "mask": case.mask, **case.inputs}
    tensors = {k: v.view(4, 4) if v.shape == (16,) else v for k, v in batch.items()}
    logits = (case.hidden @ case.weight.t()).detach().view(4, 4, -1)

    def call():
        run = loss.make_run("logits", (logits,), tensors, {}, 1.0, {"ignore_index": -100})
        run.forward((True,))

    call()  # makes counters and what depends on the temperature
    launched: list[str] = []
    monkeypatch.setattr(function, "check_labels", lambda *_: None)  # on a CPU only
    monkeypatch.setattr(counts, "_count", Launch("count", launched))
    monkeypatch.setattr(loss.kernels, "launch", lambda name, *_, **__: launched.append(name))
    with Operators() as operators:
        call()
    assert launched == ["count", *kernels]
    assert operators.names <= FREE
