"""Time of the digests that prove a publication, on one GPU or on one CPU thread.

    random bf16 tensors of a model's shapes --digest of each--> milliseconds, as JSON

First some tensors are compared with what the CPU finds. `ms`: all tensors by `Digests`, as in a
run; `one_by_one_ms`: a call, and on a GPU a kernel launch, for each; `sum_ms`: for comparison
PyTorch's sum of the bits of each.

    python benchmarks/digests.py [--size 0.6B] [--rounds 6]

A trainer does this once a publication and an engine once: a sync costs twice the figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from forgedsl_runtime.proofs.digest import Digests, digest, unsigned

SHAPES = {"tiny": (3, 128, 384, 128, 64, 48), "0.6B": (28, 1024, 3072, 2048, 1024, 151_936),
          "4B": (36, 2560, 9728, 4096, 1024, 151_936)}  # fmt: skip
"""of Qwen3: layers, hidden, FFN, width of the queries, width of keys and values, vocabulary"""
HEAD = 128
"""width of a head, which the norms of queries and keys have"""


def tensors(size: str, device: str) -> list[torch.Tensor]:
    """The weights of a model, with random values."""
    layers, hidden, ffn, queries, keys, vocabulary = SHAPES[size]
    layer = [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries), (ffn, hidden),
             (ffn, hidden), (hidden, ffn), (hidden,), (hidden,), (HEAD,), (HEAD,)]  # fmt: skip
    shapes = [(vocabulary, hidden), (hidden,), *layer * layers]
    return [torch.randn(*shape, device=device).bfloat16() for shape in shapes]


def together(state: list[torch.Tensor]) -> list[int]:
    found = Digests()
    for value in state:
        found.add(value)
    return found.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=tuple(SHAPES), default="0.6B")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    state = tensors(args.size, device)
    shown = state[1:11]
    assert together(shown) == [unsigned(int(digest(each.cpu()))) for each in shown]
    wait = torch.cuda.synchronize if device == "cuda" else int

    def milliseconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(args.rounds):
            wait()
            start = time.perf_counter()
            work()
            wait()
            taken.append(1e3 * (time.perf_counter() - start))
        return round(statistics.median(taken[1:]), 2)

    elements = sum(value.numel() for value in state)
    print(json.dumps({
        "device": device, "size": args.size, "tensors": len(state), "elements": elements,
        "ms": milliseconds(lambda: together(state)),
        "one_by_one_ms": milliseconds(lambda: torch.stack([digest(v) for v in state]).tolist()),
        "sum_ms": milliseconds(lambda: [value.view(torch.int16).sum() for value in state]),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
