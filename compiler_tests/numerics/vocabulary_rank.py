"""One rank of a vocabulary-parallel group: evaluates a list of calls on its part of the vocabulary.

    python vocabulary_rank.py FOLDER RANK RANKS

reads FOLDER/calls.pt and writes FOLDER/rank{RANK}.pt: for each call the loss, the metrics, the
gradients of this rank and the kernel that ran, or the message of the error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed as dist


def evaluate(call: dict, rank: int, ranks: int) -> dict:
    import forgedsl

    loss = forgedsl.compile_loss(call["source"], params=call["params"], backend=call["backend"])
    given = dict(call["inputs"])
    vocabulary = given[call["split"]].shape[-1 if call["split"] == "logits" else 0]
    dim = -1 if call["split"] == "logits" else 0
    given[call["split"]] = given[call["split"]].chunk(ranks, dim)[rank].clone()
    sources = ("logits",) if call["split"] == "logits" else ("hidden", "weight")
    leaves = [given[name].requires_grad_() for name in sources]
    given |= dict(zip(sources, leaves, strict=True))
    form = loss if call["split"] == "logits" else loss.linear
    try:
        out = form(group=dist.group.WORLD, vocabulary=vocabulary, **given)
    except (IndexError, ValueError) as error:
        return {"error": str(error)}
    (2 * out.loss).backward()
    logprobs = None
    if call["split"] == "weight":
        from forgedsl_runtime.losses import token_logprobs

        logprobs = token_logprobs(
            given["hidden"], given["weight"], given["labels"], 0.7,
            group=dist.group.WORLD, vocabulary=vocabulary,
        )  # fmt: skip
    return {
        "logprobs": logprobs,
        "loss": out.loss.detach(),
        "metrics": out.metrics,
        "gradients": [leaf.grad for leaf in leaves],
        "kernel": out.kernel,
    }


def main(folder: Path, rank: int, ranks: int) -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    calls = torch.load(folder / "calls.pt")
    torch.save([evaluate(call, rank, ranks) for call in calls], folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that are still there at an orderly exit now and then abort it


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
