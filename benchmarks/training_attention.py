"""Attention of the trainer over packed rows: torch's flash attention 2, vLLM's flash attention 4.

    random q, k, v, bounds --forward, forward and backward--> ms, TFLOP/s, errors

    python benchmarks/training_attention.py

Needs a Hopper GPU. Both run in one process, in turns. FLOPs are those of causal attention: 4 times
heads, width and pairs of tokens forward, 2.5 times as many backward. Errors are the largest
difference from attention in float64, over the largest value, of a row of 2,048 tokens.
"""

from __future__ import annotations

import json
import random

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from triton.testing import do_bench

from forgedsl_runtime.services.titan.upstream.flash_attention import packed_attention

SHAPES = {
    "0.6B, 26 sequences of 1.2 k": (16, 8, 128, 26, 1260),
    "4B, 26 sequences of 1.2 k": (32, 8, 128, 26, 1260),
    "0.6B, 2 sequences of 16 k": (16, 8, 128, 2, 16_000),
    "4B, 1 sequence of 32 k": (32, 8, 128, 1, 32_000),
    "width 64, 26 sequences of 1.2 k": (16, 8, 64, 26, 1260),
}
"""heads, key heads, their width, sequences, most tokens of each"""


def theirs(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """torch's."""
    out = varlen_attn(
        q, k, v, bounds, bounds, longest, longest, window_size=(-1, 0), enable_gqa=True
    )
    assert isinstance(out, Tensor)
    return out


def ours(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """vLLM's, as the trainer calls it."""
    return packed_attention(q, k, v, bounds, longest, None)[0]


def inputs(heads: int, shared: int, width: int, lengths: list[int]) -> list[Tensor]:
    """Random q, k and v of rows of these lengths."""
    total = sum(lengths)
    return [
        torch.randn(total, n, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for n in (heads, shared, shared)
    ]


def bounds_of(lengths: list[int]) -> Tensor:
    """int32 [D + 1]: starts of the sequences, then their sum."""
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return ends.to("cuda", torch.int32)


def timed(name: str) -> None:
    """Print milliseconds and TFLOP/s of a shape, both ways."""
    heads, shared, width, count, most = SHAPES[name]
    draw = random.Random(0)
    lengths = [draw.randint(most * 7 // 8, most) for _ in range(count)]
    q, k, v = inputs(heads, shared, width, lengths)
    bounds, longest = bounds_of(lengths), max(lengths)
    push = torch.randn_like(q)
    work = 4 * heads * width * sum(n * n / 2 for n in lengths) / 1e9  # GFLOP: over ms, TFLOP/s
    for label, attend in (("torch", theirs), ("vLLM", ours)):

        def both(attend=attend) -> None:
            out = attend(q, k, v, bounds, longest)
            torch.autograd.grad(out, (q, k, v), push)

        forward = do_bench(lambda attend=attend: attend(q, k, v, bounds, longest))
        all_ms = do_bench(both)
        line = {
            "shape": name, "kernels": label, "forward_ms": round(forward, 3),
            "backward_ms": round(all_ms - forward, 3), "forward_tflops": round(work / forward),
            "backward_tflops": round(2.5 * work / (all_ms - forward)),
        }  # fmt: skip
        print(json.dumps(line), flush=True)


def errors(width: int) -> None:
    """Print how far both are from attention in float64."""
    lengths = [1, 700, 64, 129, 2, 1152]
    q, k, v = inputs(8, 2, width, lengths)
    bounds = bounds_of(lengths)
    push = torch.randn_like(q)
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).cuda()
    mask = (segment[:, None] == segment[None]).tril()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    heads_first = [x.transpose(0, 1)[None] for x in exact]
    out = F.scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True)
    wanted = [out[0].transpose(0, 1)]
    wanted += torch.autograd.grad(wanted[0], exact, push.double())
    for label, attend in (("torch", theirs), ("vLLM", ours)):
        result = attend(q, k, v, bounds, max(lengths))
        got = [result, *torch.autograd.grad(result, (q, k, v), push)]
        off = [
            float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max())
            for a, b in zip(got, wanted, strict=True)
        ]
        names = ("out", "dq", "dk", "dv")
        print(json.dumps({"width": width, "kernels": label} | dict(zip(names, off, strict=True))))


if __name__ == "__main__":
    torch.manual_seed(0)
    for width in (64, 128):
        errors(width)
    for shape in SHAPES:
        timed(shape)
