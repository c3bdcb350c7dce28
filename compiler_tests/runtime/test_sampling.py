"""Tokens drawn by pieces of the vocabulary, and their log-probs, interpreted, against float64."""

import pytest

KERNELS = """
import torch
from tolerance import close
from forgedsl_runtime.services.vllm.upstream.sampling import sampled_logprobs

torch.manual_seed(5)
for rows, vocab, dtype in [(3, 17, "float32"), (2, 50257, "bfloat16"), (1, 151936, "float32")]:
    logits = (8 * torch.randn(rows, vocab)).to(getattr(torch, dtype))
    logits[0, : vocab // 2] = float("-inf")  # what top_k and stop tokens leave out
    ids = torch.tensor([vocab - 1 - 3 * i for i in range(rows)])
    wanted = logits.double().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    found = sampled_logprobs(logits, ids)
    assert found.dtype == torch.float32
    near = close(torch.float32, vocab.bit_length(), size=float(logits.max()))  # sums are trees
    torch.testing.assert_close(found.double(), wanted, **near)
wide = torch.randn(4, 40)[:, :30]  # rows apart from each other
found = sampled_logprobs(wide, torch.tensor([0, 29, 3, 4]))
wanted = wide.log_softmax(-1)[torch.arange(4), torch.tensor([0, 29, 3, 4])]
torch.testing.assert_close(found, wanted, **close(torch.float32, 30))
"""

DRAWS = """
import numpy as np
import torch
from tolerance import close
from forgedsl_runtime.services.vllm.upstream import sampling

def philox(seed, position, keys):
    "Random bits of Philox4x32-10 (Salmon et al. 2011), as float64 in (0, 1)."
    words = [np.asarray(keys, np.uint64), np.full(len(keys), position, np.uint64)]
    words += [np.zeros(len(keys), np.uint64)] * 2
    low, key = np.uint64(0xFFFFFFFF), [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        words = [b >> np.uint64(32) ^ words[1] ^ np.uint64(key[0]), b & low,
                 a >> np.uint64(32) ^ words[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return (words[0].astype(float) + 0.5) / 2**32

def expected(row, seed, position, piece):
    "A piece by Gumbel-max, then a token of this piece, in float64."
    vocab, noise = len(row), lambda keys: -np.log(-np.log1p(-philox(seed, position, keys)))
    starts = range(0, vocab, piece)
    with np.errstate(divide="ignore"):
        shares = np.array([np.log(np.exp(row[at : at + piece]).sum()) for at in starts])
    first = piece * int((shares + noise(vocab + np.arange(len(shares)))).argmax())
    keys = np.arange(first, min(first + piece, vocab))
    return first + int((row[keys] + noise(keys)).argmax())

torch.manual_seed(2)
for rows, vocab, dtype in [(12, 150, "float32"), (4, 4500, "bfloat16"), (2, 2048, "float32")]:
    logits = torch.randn(rows, vocab).to(getattr(torch, dtype))
    logits[1, : vocab // 2] = float("-inf")
    logits[0, vocab - 1 :] = 9  # nearly always this one
    sampling.PIECE = 32 if vocab < 200 else 2048
    numbers = torch.randperm(rows).int()
    seeds = torch.randint(-2**62, 2**62, (rows,))
    positions = torch.randint(0, 2**20, (rows,))
    drawn = logits, numbers, torch.ones(rows), seeds, positions
    tokens, found = sampling.sampled_tokens(*drawn)
    wanted = [
        expected(row, int(seeds[number]), int(position), sampling.PIECE)
        for row, number, position in zip(logits.double().numpy(), numbers, positions, strict=True)
    ]
    assert tokens.tolist() == wanted, (tokens, wanted)
    of = logits.double().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    near = close(torch.float32, vocab.bit_length(), size=float(logits.max()))
    torch.testing.assert_close(found.double(), of, **near)
    greedy, _ = sampling.sampled_tokens(*drawn[:2], torch.zeros(rows), seeds, positions)
    assert greedy.tolist() == logits.float().argmax(-1).tolist()
    one = logits[1:2], numbers[1:2], torch.ones(rows), seeds, positions[1:2]
    assert sampling.sampled_tokens(*one)[0].tolist() == wanted[1:2]  # whatever is in the batch
"""

SHARES = """
import torch
from forgedsl_runtime.services.vllm.upstream import sampling

torch.manual_seed(3)
sampling.PIECE, rows = 16, 600
logits = torch.randn(40)
logits[16:20] = float("-inf")
batch = logits.expand(rows, -1).contiguous()
seeds, numbers = torch.arange(rows), torch.arange(rows, dtype=torch.int32)
tokens, _ = sampling.sampled_tokens(batch, numbers, torch.ones(rows), seeds, torch.full((rows,), 7))
wanted = logits.double().softmax(0)
found = torch.bincount(tokens, minlength=40) / rows
deviation = (wanted * (1 - wanted) / rows).sqrt()
assert ((found - wanted).abs() <= 5 * deviation).all(), (found - wanted) / deviation
"""

HANDED_ON = """
import torch
from vllm.v1.worker.gpu.sample import sampler
from forgedsl_runtime.services.vllm.upstream import sampling
from tolerance import close

seen, drawn, replayed = [], [], []
sampler.compute_topk_scores = lambda *given, **named: seen.append((given[1], named))
sampler.gumbel_sample = lambda *given, **named: drawn.append(named)
sampler.TraceReplayState.apply_trace = lambda *given: replayed.append(given)
sampling.install()
logits, ids = torch.randn(2, 9), torch.tensor([1, 8])
usual = {"max_per_req_token_ids": 0, "logits_mode": False}

def check(ours, ids):
    assert seen == [] and ours.logprob_token_ids.tolist() == ids[:, None].tolist()
    wanted = logits.log_softmax(-1)[[0, 1], ids]
    torch.testing.assert_close(ours.logprobs[:, 0], wanted, **close(torch.float32, 9))

check(sampler.compute_topk_scores(logits, 0, ids, None, **usual), ids)
sampler.compute_topk_scores(logits, 3, ids, None, **usual)
sampler.compute_topk_scores(logits, 0, ids, None, max_per_req_token_ids=2, logits_mode=False)
sampler.compute_topk_scores(logits, 0, ids, None, max_per_req_token_ids=0, logits_mode=True)
sampler.compute_topk_scores(logits, 0, ids, torch.tensor([0, 1, 2]), max_per_req_token_ids=0)
assert len(seen) == 4
seen.clear()

given = logits, torch.tensor([1, 0]), torch.ones(2), torch.tensor([5, 6]), torch.tensor([3, 3])
plain = {"apply_temperature": False, "is_drafting": False}
tokens = sampler.gumbel_sample(*given, **plain, use_fp64=False)
assert tokens.tolist() == sampling.sampled_tokens(*given)[0].tolist()
kept, sampling.sampled_logprobs = sampling.sampled_logprobs, None  # not computed again
check(sampler.compute_topk_scores(logits, 0, tokens, None, **usual), tokens)
sampling.sampled_logprobs = kept
others = logits.clone()  # of other logits
assert sampler.compute_topk_scores(others, 0, tokens, None, **usual).logprobs.shape == (2, 1)
tokens = sampler.gumbel_sample(*given, **plain)
sampler.TraceReplayState.apply_trace(None, tokens, None)  # vLLM writes other tokens here
tokens.copy_(ids)
assert len(replayed) == 1
check(sampler.compute_topk_scores(logits, 0, tokens, None, **usual), ids)
assert drawn == []
for other in ({"use_fp64": True}, {"is_drafting": True}, {"apply_temperature": True},
              {"logits_cache": torch.zeros(1)}):
    sampler.gumbel_sample(*given, **{**plain, **other})
assert len(drawn) == 4
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KERNELS, id="kernels"),
        pytest.param(DRAWS, id="draws"),
        pytest.param(SHARES, id="shares", marks=pytest.mark.full),
        pytest.param(HANDED_ON, id="handed_on", marks=pytest.mark.full),
    ],
)
def test_tokens_and_their_logprobs(interpreted, program: str) -> None:
    interpreted(program)
