"""Log-probs of sampled tokens in one reading of the logits, interpreted, against float64."""

import pytest

KERNELS = """
import torch
from tolerance import close
from forgedsl_runtime.services.vllm.upstream.logprobs import sampled_logprobs

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

HANDED_ON = """
import torch
from vllm.v1.worker.gpu.sample import sampler
from forgedsl_runtime.services.vllm.upstream import logprobs
from tolerance import close

seen = []
sampler.compute_topk_scores = lambda *given, **named: seen.append((given[1], named))
logprobs.install()
logits, ids = torch.randn(2, 9), torch.tensor([1, 8])
ours = sampler.compute_topk_scores(logits, 0, ids, None, max_per_req_token_ids=0, logits_mode=False)
assert seen == [] and ours.logprob_token_ids.tolist() == [[1], [8]]
wanted = logits.log_softmax(-1)[[0, 1], ids]
torch.testing.assert_close(ours.logprobs[:, 0], wanted, **close(torch.float32, 9))
sampler.compute_topk_scores(logits, 3, ids, None, max_per_req_token_ids=0, logits_mode=False)
sampler.compute_topk_scores(logits, 0, ids, None, max_per_req_token_ids=2, logits_mode=False)
sampler.compute_topk_scores(logits, 0, ids, None, max_per_req_token_ids=0, logits_mode=True)
sampler.compute_topk_scores(logits, 0, ids, torch.tensor([0, 1, 2]), max_per_req_token_ids=0)
assert len(seen) == 4
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KERNELS, id="kernels"),
        pytest.param(HANDED_ON, id="handed_on", marks=pytest.mark.full),
    ],
)
def test_logprobs_of_sampled_tokens(interpreted, program: str) -> None:
    interpreted(program)
