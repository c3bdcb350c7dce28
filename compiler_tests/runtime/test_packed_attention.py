"""Attention over the sequences of one packed row, against attention under a mask (needs a GPU)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.packing import pack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(
    ("dtype", "newest", "bound"),
    [(torch.bfloat16, False, 2e-2), (torch.bfloat16, True, 2e-2), (torch.float32, False, 2e-5)],
)
def test_packed_attention_is_attention_under_the_mask(
    dtype: torch.dtype, newest: bool, bound: float, width: int
) -> None:
    from forgedsl_runtime.services.titan.upstream.attention import Segments, packed_attention

    lengths = [1, 7, 300, 64, 129, 2]
    items = [Sample(token_ids=[1] * n, num_prompt=1, mask=[True] * (n - 1)) for n in lengths]
    (micro,) = pack(items, seq_len=512, rows=1, rank=0, world=1, flat=True)
    micro = micro.to(torch.device("cuda"))
    length = micro.tokens.shape[1]
    shapes = [(1, length, heads, width) for heads in (8, 2, 2)]
    inputs = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]
    twins = [x.detach().double().requires_grad_() for x in inputs]
    attend = packed_attention().Config().build()
    if newest and not attend.newest:
        pytest.skip("needs a GPU of Hopper's generation, with vLLM")
    attend.newest = newest
    out = attend(*inputs, attention_masks=Segments(micro.bounds, micro.longest))
    q, k, v = (x.transpose(1, 2) for x in twins)
    wanted = F.scaled_dot_product_attention(
        q, k, v, attn_mask=micro.mask(), enable_gqa=True
    ).transpose(1, 2)
    push = torch.randn_like(out)
    out.backward(push)
    wanted.backward(push.double())
    for got, true in (
        (out, wanted),
        *((x.grad, y.grad) for x, y in zip(inputs, twins, strict=True)),
    ):
        assert (got.double() - true).abs().max() <= bound * true.abs().max()
