"""Log-probs of sampled tokens on a GPU: logits are read once, by all multiprocessors.

    logits [B, V], token ids [B] --> log-probs [B]

In vLLM, one program reads a row twice and also counts the rank of the sampled token, which is not
needed here. vLLM's way takes 0.26 ms of a decode step with 128 sequences and a vocabulary of
151,936. Here each row is cut into pieces, each with a running maximum and sum (online softmax,
arXiv 1805.02867).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

PIECES = 16
"""pieces of a row: 128 rows of 16 pieces fill 132 multiprocessors fifteen times"""
BLOCK = 2048


@triton.jit
def _pieces(logits, stride, tops, sums, vocab, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, piece, count = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    start = piece * length
    end = tl.minimum(start + length, vocab)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(start, end, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        x = tl.load(
            logits + row.to(tl.int64) * stride + columns, mask=columns < end, other=float("-inf")
        ).to(tl.float32)
        above = tl.maximum(top, x)
        # The logits of masked tokens are -inf; those of a whole block may be.
        base = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = above
    best = tl.max(top, 0)
    base = tl.where(best == float("-inf"), 0.0, best)
    tl.store(tops + row * count + piece, best)
    tl.store(sums + row * count + piece, tl.sum(total * tl.exp(top - base), 0))


@triton.jit
def _joined(logits, stride, ids, tops, sums, out, PIECES: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    piece = tl.arange(0, PIECES)
    top = tl.load(tops + row * PIECES + piece)
    best = tl.max(top, 0)
    total = tl.sum(tl.load(sums + row * PIECES + piece) * tl.exp(top - best), 0)
    token = tl.load(ids + row).to(tl.int64)
    x = tl.load(logits + row.to(tl.int64) * stride + token).to(tl.float32)
    tl.store(out + row, x - best - tl.log(total))


def sampled_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return log softmax(logits)[token_ids], fp32 [B], of logits [B, V] in any floating dtype."""
    rows, vocab = logits.shape
    parts = torch.empty((2, rows, PIECES), dtype=torch.float32, device=logits.device)
    found = torch.empty(rows, dtype=torch.float32, device=logits.device)
    length = triton.cdiv(triton.cdiv(vocab, PIECES), BLOCK) * BLOCK
    grid = (rows, PIECES)
    _pieces[grid](logits, logits.stride(0), parts[0], parts[1], vocab, length, BLOCK=BLOCK)
    _joined[(rows,)](
        logits, logits.stride(0), token_ids, parts[0], parts[1], found, PIECES=PIECES, num_warps=1
    )
    return found


def install() -> None:
    """Replace the computation of sampled tokens' log-probs in vLLM's GPU sampler. Requests that ask
    for more log-probs use vLLM's code. Ranks of tokens are not counted."""
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu.sample import sampler

    module: Any = sampler
    theirs = module.compute_topk_scores

    def scores(
        logits: torch.Tensor, num_logprobs: int, sampled: torch.Tensor, *rest: Any, **named: Any
    ) -> LogprobsTensors:
        expanded = rest[0] if rest else named.get("cu_num_logits")
        if (
            num_logprobs > 0
            or rest[1:]
            or named.get("max_per_req_token_ids")
            or named.get("logits_mode")
            or isinstance(expanded, torch.Tensor)
        ):
            found: LogprobsTensors = theirs(logits, num_logprobs, sampled, *rest, **named)
            return found
        return LogprobsTensors(
            logprob_token_ids=sampled.unsqueeze(-1),
            logprobs=sampled_logprobs(logits, sampled).unsqueeze(-1),
            selected_token_ranks=torch.zeros_like(sampled, dtype=torch.int64),
            cu_num_generated_tokens=expanded,
        )

    module.compute_topk_scores = scores
