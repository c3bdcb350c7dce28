"""Trajectories of several rows: packed loss and gradient equal those of rows computed by hand.

A layer of attention in float64 stands for the model. By hand each row is computed alone, with a
plain causal mask, and the trajectory's answers are put together as one sequence.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

import forgedsl
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.packing import pack

VOCABULARY, WIDTH = 23, 8
ROWS = (
    (([1, 2, 3, 4, 5], (2, 5)), ([1, 2, 4, 5, 9, 8, 7], (5, 7)), ([6, 7, 11, 12], (1, 4))),
    (([13, 14, 15, 16], (1, 4)),),
)
"""trajectories of rows: tokens, and which of them the policy wrote"""
ADV = (0.75, -1.25)
EXACT = {"rtol": 1e-11, "atol": 1e-13}
"""sums of some 100 float64 products, whose order differs: 100 x 2^-53, with room"""


def parameters() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    table = torch.randn(VOCABULARY, WIDTH, generator=draw, dtype=torch.float64)
    into = torch.randn(3 * WIDTH, WIDTH, generator=draw, dtype=torch.float64) / 3
    return table.requires_grad_(), into.requires_grad_()


def hidden(table: Tensor, into: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Hidden states [R, L, WIDTH] of tokens [R, L]; positions turn the embeddings."""
    x = table[tokens] * torch.cos(positions[..., None] * torch.arange(1, WIDTH + 1).double())
    q, k, v = linear(x, into).view(*tokens.shape, 3, 1, WIDTH).permute(2, 0, 3, 1, 4)
    return x + scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]


def by_hand(table: Tensor, into: Tensor) -> list[Tensor]:
    """Log-probs of what the policy wrote, a trajectory after the other."""
    found = []
    for rows in ROWS:
        parts = []
        for tokens, (begin, end) in rows:
            length = len(tokens)
            causal = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
            row = torch.tensor([tokens])
            states = hidden(table, into, row, torch.arange(length)[None], causal)[0]
            scores = torch.log_softmax(states @ table.T, -1)
            parts.append(scores[range(begin - 1, end - 1), tokens[begin:end]])
        found.append(torch.cat(parts))
    return found


def dapo(new: list[Tensor], old: list[Tensor]) -> Tensor:
    terms = []
    for lp, behavior, adv in zip(new, old, ADV, strict=True):
        ratio = (lp - behavior).exp()
        terms.append(-torch.minimum(ratio * adv, ratio.clip(0.8, 1.28) * adv))
    return torch.cat(terms).mean()


def gspo(new: list[Tensor], old: list[Tensor]) -> Tensor:
    terms = []
    for lp, behavior, adv in zip(new, old, ADV, strict=True):
        ratio = (lp - behavior).mean().exp()
        terms.append(-torch.minimum(ratio * adv, ratio.clip(1 - 3e-4, 1 + 4e-4) * adv))
    return torch.stack(terms).mean()


def sapo(new: list[Tensor], old: list[Tensor]) -> Tensor:
    """A mean of each trajectory, then of the trajectories (2511.20347)."""
    terms = []
    for lp, behavior, adv in zip(new, old, ADV, strict=True):
        tau = 1.0 if adv > 0 else 1.05
        gate = torch.sigmoid(tau * ((lp - behavior).exp() - 1)) * 4 / tau
        terms.append((-gate * adv).mean())
    return torch.stack(terms).mean()


def samples(old: list[Tensor]) -> list[Sample]:
    """The trajectories as the driver makes them: rows end to end, masked to what was written."""
    made = []
    for rows, behavior, adv in zip(ROWS, old, ADV, strict=True):
        tokens = [token for row, _ in rows for token in row]
        own = [b <= i < e for row, (b, e) in rows for i in range(len(row))]
        lengths = torch.tensor([len(row) for row, _ in rows]).cumsum(0).tolist()
        prompt = rows[0][1][0]
        values = iter(behavior.tolist())
        made.append(
            Sample(
                token_ids=tokens, num_prompt=prompt, mask=own[prompt:],
                token_fields={"behavior": [next(values) if on else 0.0 for on in own[prompt:]]},
                sequence_fields={"adv": adv}, row_starts=tuple(lengths[:-1]),
            )
        )  # fmt: skip
    return made


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("formula", [dapo, gspo, sapo])
def test_rows_of_a_trajectory_give_the_gradient_of_one_sequence(
    formula: Callable[[list[Tensor], list[Tensor]], Tensor], flat: bool
) -> None:
    table, into = parameters()
    new = by_hand(table, into)
    # In f32, as samples hold it; far enough for ratios other than 1.
    old = [(lp.detach() - 0.03 * (i + 1)).float().double() for i, lp in enumerate(new)]
    wanted = formula(new, old)
    gradients = torch.autograd.grad(wanted, (table, into))

    (micro,) = pack(samples(old), seq_len=20, rows=2, rank=0, world=1, flat=flat)
    states = hidden(table, into, micro.tokens, micro.positions, micro.mask())
    loss = forgedsl.compile_loss(formula.__name__)
    out = loss.linear(
        hidden=states.flatten(0, 1)[micro.index], weight=table, labels=micro.labels,
        seq_id=micro.seq_id, behavior=micro.inputs["behavior"].double(),
        adv=micro.inputs["adv"].double(), logits_dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(out.loss, wanted, **EXACT)
    for found, by in zip(torch.autograd.grad(out.loss, (table, into)), gradients, strict=True):
        torch.testing.assert_close(found, by, **EXACT)
