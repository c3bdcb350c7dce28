"""Random batches for losses, and the undifferentiated reference they are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import forgedsl
from forgedsl_runtime.losses import LossFunction

# Triton decides once, when it is imported, whether its own library is interpreted, and so do our
# kernels that are no template, whoever imports them first. Child processes of other tests must not
# inherit the decision; tests of kernels set the variable for themselves.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRITON_INTERPRET", "1")
    import triton.language  # noqa: F401

    import forgedsl_runtime.losses.counts
    import forgedsl_runtime.losses.product_kernels
    import forgedsl_runtime.losses.rescale
    import forgedsl_runtime.proofs.digest_kernel  # noqa: F401

PARAMS = {"dr_grpo": {"horizon": 7.0}}
VARIANTS = {
    "sft_smoothed": ("sft", {"label_smoothing": 0.1, "z_loss": 0.01}),
    "ppo_dual": ("ppo", {"dual_clip": 1.2}),
    "grpo_entropy": ("grpo", {"entropy_coef": 0.02}),
    "dpo_conservative": ("dpo", {"label_smoothing": 0.1}),
}
STANDARD = (
    "sft", "dft", "reinforce", "rloo", "ppo", "grpo", "dr_grpo", "dapo", "cispo", "gspo",
    "gspo_token", "sapo", "gmpo", "luspo", "tis_ppo", "icepop", "dppo", "dpo", "ipo", "ppo_critic",
    *VARIANTS,
)  # fmt: skip


@dataclass
class Case:
    """A packed batch over a small vocabulary; two ragged tokens of each sequence are masked."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    mask: Tensor
    seq_id: Tensor
    inputs: dict[str, Tensor] = field(default_factory=dict)
    temperature: float = 0.7

    @property
    def batch(self) -> dict[str, Tensor]:
        return {"labels": self.labels, "mask": self.mask, "seq_id": self.seq_id}

    def statistics(self) -> dict[str, Tensor]:
        """Row statistics by autograd."""
        z = self.hidden @ self.weight.t() / self.temperature
        logp = torch.log_softmax(z, dim=1)
        return {
            "logprob": logp.gather(1, self.labels.unsqueeze(1)).squeeze(1),
            "entropy": -(logp.exp() * logp).sum(dim=1),
            "logsumexp": torch.logsumexp(z, dim=1),
            "mean_logprob": logp.mean(dim=1),
        }


def source_of(name: str) -> tuple[str, dict[str, float]]:
    """The name in the standard library, and parameters."""
    return VARIANTS.get(name, (name, PARAMS.get(name, {})))


def standard(name: str) -> LossFunction:
    source, params = source_of(name)
    return forgedsl.compile_loss(source, params=params)


def make_case(
    loss: LossFunction,
    *,
    seed: int = 0,
    lengths: tuple[int, ...] = (5, 3, 6, 4),
    noise: float = 0.3,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """A batch with old log-probs near the current ones and every input the loss declares."""
    rng = torch.Generator().manual_seed(seed)
    num_rows, vocabulary, width = sum(lengths), 11, 6
    hidden = torch.randn(num_rows, width, generator=rng, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=rng, dtype=dtype)
    labels = torch.randint(vocabulary, (num_rows,), generator=rng)
    seq_id = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = torch.rand(num_rows, generator=rng) > 0.3
    case = Case(hidden.requires_grad_(), weight.requires_grad_(), labels, mask, seq_id)
    current = case.statistics()["logprob"].detach()
    for spec in loss.fields:
        if spec.name not in loss.input_names:
            continue
        if spec.name == "value":
            case.inputs["value"] = case.hidden.sum(1)
        elif "T" in spec.axes:
            drift = torch.randn(num_rows, generator=rng, dtype=dtype)
            case.inputs[spec.name] = current + noise * drift
        else:
            case.inputs[spec.name] = torch.randn(len(lengths), generator=rng, dtype=dtype)
    return case


def reference(loss: LossFunction, case: Case) -> Tensor:
    """The loss by autograd through log_softmax and the emitted, undifferentiated program."""
    num_sequences = int(case.seq_id[-1]) + 1
    valid = torch.zeros(num_sequences, dtype=torch.bool)
    valid[case.seq_id[case.mask]] = True
    paired = valid.view(-1, 2).all(1).repeat_interleave(2) if loss.paired else valid
    step = SimpleNamespace(
        num_tokens=case.mask.sum().to(case.hidden.dtype),
        num_sequences=paired.sum().to(case.hidden.dtype),
    )
    x = SimpleNamespace(
        **case.inputs,
        **case.statistics(),
        mask=case.mask,
        seq_id=case.seq_id,
        seq_valid=valid,
        step=step,
        dtype=case.hidden.dtype,
    )
    return loss.module.loss(x)[0]


def gradients(value: Tensor, case: Case) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, (case.hidden, case.weight))


@pytest.fixture(params=STANDARD)
def standard_loss(request: pytest.FixtureRequest) -> LossFunction:
    """Each loss of the standard library."""
    return standard(request.param)


@pytest.fixture(scope="session")
def losses() -> SimpleNamespace:
    """The helpers of this file."""
    return SimpleNamespace(
        standard=standard,
        source_of=source_of,
        make_case=make_case,
        reference=reference,
        gradients=gradients,
        names=STANDARD,
    )
