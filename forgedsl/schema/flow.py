"""What a flow may call: methods by owner, their parameters, columns they need."""

from __future__ import annotations

from forgedsl.services import registry
from forgedsl.settings import Live

METHODS: Live[tuple[str, ...]] = Live(
    lambda: {
        "dataset": ("draw", "batches", "pairs", "observe"),
        "buffer": ("put", "draw"),
        **{kind.name: kind.methods for kind in registry.KINDS},
    }
)
COLUMNS = {"draw": ("prompt",), "batches": ("chat",), "pairs": ("chosen", "rejected")}
PARAMETERS = {
    "draw": ("count", "weight"),
    "observe": ("prompt", "score"),
    "put": ("rollout", "keep"),
    "pairs": ("count",),
    "batches": (),
    "sample": ("prompt", "n"),
    "play": ("prompt", "env", "n", "max_turns"),
    "logprobs": ("rollout",),
    "values": ("rollout",),
    "step": ("batch", "loss", "epochs", "minibatches"),
    "score": ("rollout", "target"),
    "keep": ("mask",),
}
COUNTS = frozenset({"n", "count", "max_turns", "epochs", "minibatches"})
STREAMS = frozenset({"prompt", "rollout", "batch", "mask"})


def place(what: str, index: int) -> str:
    """`batch`, `batch_2`, ...: the arguments of a step, and `loss`, `loss_2`, ... its losses."""
    return what if index == 0 else f"{what}_{index + 1}"
