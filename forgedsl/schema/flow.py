"""What a flow may call: methods by owner, their parameters, columns they need."""

from __future__ import annotations

METHODS = {
    "dataset": ("draw", "batches", "pairs"),
    "titan": ("step", "logprobs"),
    "vllm": ("sample",),
}
COLUMNS = {"draw": ("prompt",), "batches": ("chat",), "pairs": ("chosen", "rejected")}
PARAMETERS = {
    "draw": ("count",),
    "pairs": ("count",),
    "batches": (),
    "sample": ("prompt", "n"),
    "logprobs": ("rollout",),
    "step": ("batch", "loss", "epochs", "minibatches"),
    "score": ("rollout", "target"),
    "keep": ("mask",),
}
COUNTS = frozenset({"n", "count", "epochs", "minibatches"})
STREAMS = frozenset({"prompt", "rollout", "batch", "mask"})
