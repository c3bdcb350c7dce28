"""Log-probs that an evaluation of a loss keeps: those of its labels, in the order of its input."""

import pytest
import torch

import forgedsl
from forgedsl_runtime.losses.function import _logprob


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Kernels are loaded on first use and see this then."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    "call",
    [{}, {"chunk_rows": 7}, {"chunk_rows": 7, "compact": True}, {"workspace": 1 << 19}],
)  # fmt: skip
@pytest.mark.parametrize("name", ["grpo", "gspo", "dpo", "reinforce"])
def test_logprobs_of_labels_are_kept(name, call, backend, losses):
    loss = forgedsl.compile_loss(name).using(backend)
    loss.keeps_logprobs = True
    case = losses.make_case(loss)
    got = loss.linear(
        hidden=case.hidden, weight=case.weight, temperature=0.7, **case.batch, **case.inputs, **call
    ).logprob
    want = case.statistics()["logprob"].detach().float()
    kept = case.mask.reshape(-1)
    assert got.shape == want.shape
    torch.testing.assert_close(got[kept], want[kept])
    assert got[~kept].isnan().all()


def test_logprobs_of_sorted_rows_are_in_the_order_of_the_input():
    """Rows that kernels have sorted, as those without gradient last, come back to their places."""

    class Run:
        class rows:
            index, num_rows = torch.tensor([3, 0, 2]), 4
            valid = torch.tensor([True, True, True])

        statistics = {"logprob": torch.tensor([-3.0, 0.0, -2.0])}  # noqa: RUF012

    found = _logprob(Run).tolist()
    assert (found[0], found[2], found[3]) == (0.0, -2.0, -3.0)
    assert found[1] != found[1]
