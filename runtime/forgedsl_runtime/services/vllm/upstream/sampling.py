"""Tokens drawn on a GPU, and their log-probs: most of the work is one reading of the logits.

    logits [B, V] --> piece by its share of the sum --> token of that piece, and its log-prob [B]

vLLM adds noise to every logit and takes the largest sum (Gumbel-max, arXiv 1411.0030). Then one
program reads a row twice for the log-prob of its token. With 128 rows and a vocabulary of 151,936
this takes 0.36 ms of a decode step.

Here each row is cut into pieces, each with its maximum and its sum of exponentials (arXiv
1805.02867). A piece is drawn with the probability of all its tokens, then a token of this piece, by
the same rule as in vLLM. So only the logits of one piece need noise. The distribution is the same;
the tokens of a seed are others than vLLM's.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import triton
import triton.language as tl
from torch.utils.weak import WeakIdKeyDictionary

from forgedsl_runtime.services.vllm.upstream.attention import launch

PIECE = 2048
"""tokens of a piece"""
WARPS = 4


@triton.jit
def _pieces(logits, stride, tops, sums, vocab, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    row, piece, count = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    columns = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(
        logits + row.to(tl.int64) * stride + columns, mask=columns < vocab, other=float("-inf")
    ).to(tl.float32)
    top = tl.max(x, 0)
    # The logits of masked tokens are -inf; those of a whole piece may be.
    base = tl.where(top == float("-inf"), 0.0, top)
    tl.store(tops + row * count + piece, top)
    tl.store(sums + row * count + piece, tl.sum(tl.exp(x - base), 0))


@triton.jit
def _row_sum(row, tops, sums, count, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the maximum of each piece, its sum relative to the row's maximum, and the row's
    maximum."""
    piece = tl.arange(0, COUNT)
    top = tl.load(tops + row * count + piece, mask=piece < count, other=float("-inf"))
    share = tl.load(sums + row * count + piece, mask=piece < count, other=0.0)
    best = tl.max(top, 0)
    return top, share * tl.exp(top - best), best


@triton.jit
def _joined(logits, stride, ids, tops, sums, out, count, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    _, share, best = _row_sum(row, tops, sums, count, COUNT)
    token = tl.load(ids + row).to(tl.int64)
    x = tl.load(logits + row.to(tl.int64) * stride + token).to(tl.float32)
    tl.store(out + row, x - best - tl.log(tl.sum(share, 0)))


@triton.jit
def _noise(seed, position, keys):  # type: ignore[no-untyped-def]
    """Return standard Gumbel noise, -log(E) with E exponential, for each key.

    The smallest E is the largest noise, which decides. E = -log(1 - u) is a series where u is
    small, since 1 - u would be rounded. u has 32 bits: it is larger than 0 and less than 1.
    """
    bits, _, _, _ = tl.philox(seed, keys.to(tl.uint32), position, 0, 0)
    high, low = (
        (bits >> 16).to(tl.int32).to(tl.float32),
        (bits & 0xFFFF).to(tl.int32).to(tl.float32),
    )
    u = tl.minimum(high * 2.0**-16 + (low + 0.5) * 2.0**-32, 1 - 2.0**-24)
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5)))))
    return -tl.log(tl.where(u < 0.03125, series, -tl.log(1 - u)))


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits, stride, requests, temperatures, seeds, positions, tops, sums, tokens, out, vocab, count,
    PIECE: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    request = tl.load(requests + row).to(tl.int64)
    known = request >= 0
    greedy = tl.load(temperatures + request, mask=known, other=0.0).to(tl.float32) == 0.0
    seed = tl.load(seeds + request, mask=known, other=0)
    position = tl.load(positions + row).to(tl.uint32)
    top, share, best = _row_sum(row, tops, sums, count, COUNT)
    weights = tl.where(
        greedy, top, tl.log(share) + _noise(seed, position, vocab + tl.arange(0, COUNT))
    )
    _, piece = tl.max(weights, 0, return_indices=True)
    columns = tl.minimum(piece, count - 1) * PIECE + tl.arange(0, PIECE)
    row_logits = logits + row.to(tl.int64) * stride
    x = tl.load(row_logits + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
    noised = x if greedy else x + _noise(seed, position, columns)
    _, place = tl.max(noised, 0, return_indices=True)
    # Logits that are not numbers may choose a place after the last token.
    token = tl.minimum(tl.minimum(piece, count - 1) * PIECE + place, vocab - 1)
    tl.store(tokens + row, token.to(tl.int64))
    chosen = tl.load(row_logits + token).to(tl.float32)
    tl.store(out + row, chosen - best - tl.log(tl.sum(share, 0)))


def _piece_sums(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the maxima and sums of pieces, fp32 [B, pieces] each, and a power of 2 for pieces."""
    rows, vocab = logits.shape
    count = triton.cdiv(vocab, PIECE)
    # two tensors, so that both are aligned for any number of rows
    tops = torch.empty((rows, count), dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(tops)
    grid = (rows, count)
    launch(_pieces, grid, logits, logits.stride(0), tops, sums, vocab, PIECE=PIECE, num_warps=WARPS)
    return tops, sums, triton.next_power_of_2(count)


def sampled_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return log softmax(logits)[token_ids], fp32 [B], of logits [B, V] in any floating dtype."""
    tops, sums, most = _piece_sums(logits)
    found = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    _joined[(logits.shape[0],)](
        logits, logits.stride(0), token_ids, tops, sums, found, tops.shape[1], COUNT=most,
        num_warps=1,
    )  # fmt: skip
    return found


def sampled_tokens(
    logits: torch.Tensor, requests: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return a token drawn from softmax(logits), int64 [B], and its log-prob, fp32 [B], for each
    row of the logits [B, V]; where the temperature is 0, the token with the largest logit.

    requests: number of each row's request, [B], in temperatures [R] (fp32, logits are already
    divided by them) and seeds [R] (int64). positions: place of the token before, [B]. A row with
    the same seed, position and logits gets the same token in any batch. Tensors on the meta device
    only have the kernels compiled.
    """
    rows, vocab = logits.shape
    tops, sums, most = _piece_sums(logits)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    found = torch.empty(rows, dtype=torch.float32, device=logits.device)
    launch(
        _draw, (rows,), logits, logits.stride(0), requests, temperatures, seeds, positions, tops,
        sums, tokens, found, vocab, tops.shape[1], PIECE=PIECE, COUNT=most, num_warps=WARPS,
    )  # fmt: skip
    return tokens, found


class SamplerFunctions:
    """Functions that replace those of `theirs`, vLLM's module `sampler`.

    vLLM draws tokens and then asks for their log-probs. Both are computed together here, so the
    log-probs are kept with the tensor of tokens."""

    def __init__(self, theirs: Any) -> None:
        self._draw, self._score = theirs.gumbel_sample, theirs.compute_topk_scores
        self._apply_trace = theirs.TraceReplayState.apply_trace
        self._drawn: Any = WeakIdKeyDictionary()
        """by tensor of tokens: the logits they were drawn from, and their log-probs"""

    def tokens(
        self, logits: torch.Tensor, requests: torch.Tensor, temperature: torch.Tensor,
        seed: torch.Tensor, pos: torch.Tensor, *rest: Any, **named: Any,
    ) -> torch.Tensor:  # fmt: skip
        """See vllm.v1.worker.gpu.sample.gumbel.gumbel_sample."""
        if rest or any(value is not None and value is not False for value in named.values()):
            found: torch.Tensor = self._draw(
                logits, requests, temperature, seed, pos, *rest, **named
            )
            return found
        ours, logprobs = sampled_tokens(
            logits, requests.contiguous(), temperature, seed, pos.contiguous()
        )
        self._drawn[ours] = (weakref.ref(logits), logprobs)
        return ours

    def scores(
        self, logits: torch.Tensor, num_logprobs: int, sampled: torch.Tensor, *rest: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        """See vllm.v1.worker.gpu.sample.logprob.compute_topk_scores."""
        from vllm.v1.outputs import LogprobsTensors

        expanded = rest[0] if rest else named.get("cu_num_logits")
        if (
            num_logprobs > 0
            or rest[1:]
            or named.get("max_per_req_token_ids")
            or named.get("logits_mode")
            or isinstance(expanded, torch.Tensor)
        ):
            return self._score(logits, num_logprobs, sampled, *rest, **named)
        of, logprobs = self._drawn.get(sampled, (lambda: None, None))
        if of() is not logits:
            logprobs = sampled_logprobs(logits, sampled)
        return LogprobsTensors(
            logprob_token_ids=sampled.unsqueeze(-1),
            logprobs=logprobs.unsqueeze(-1),
            selected_token_ranks=torch.zeros_like(sampled, dtype=torch.int64),
            cu_num_generated_tokens=expanded,
        )

    def apply_trace(self, state: Any, sampled: torch.Tensor, *rest: Any) -> None:
        """See TraceReplayState.apply_trace: other tokens are written in place of those drawn."""
        self._drawn.pop(sampled, None)
        self._apply_trace(state, sampled, *rest)


def install() -> None:
    """Replace how vLLM's GPU sampler draws tokens and computes their log-probs. Requests that ask
    for more log-probs use vLLM's code, as do noise in float64 and tokens that are only proposed.
    Ranks of tokens are not counted."""
    from vllm.v1.worker.gpu.sample import sampler

    module: Any = sampler
    ours = SamplerFunctions(module)
    module.gumbel_sample, module.compute_topk_scores = ours.tokens, ours.scores
    module.TraceReplayState.apply_trace = lambda state, *given: ours.apply_trace(state, *given)
