"""Right publications give no alarm: a CPU engine loads new weights over and over, proving each.

    weights, moved at random --Sender--> shm or tcp --engine--> digests of what it holds, compared

    python benchmarks/right_publications.py [--count 10000] [--way shm]

Prints the number of alarms and the seconds as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from forgedsl.shipped import shipped_root
from forgedsl_runtime.proofs.publication import arrival
from forgedsl_runtime.transports.base import Sender
from forgedsl_runtime.transports.registry import open_weights, transport

sys.path[:0] = [str(Path(__file__).parents[1] / "compiler_tests/runtime")]
from small_engine import small_engine  # noqa: E402

MODEL = shipped_root() / "models/tiny_math"
SCALES = (1e-7, 1e-4, 1e-2)
"""sizes of updates, one after the other"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--way", choices=("shm", "tcp"), default="shm")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = small_engine(MODEL, Path(folder) / "rendezvous", random=True)
        start, alarms = time.perf_counter(), run(own, args.way, args.count)
        seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"publications": args.count, "way": args.way, "alarms": alarms,
                      "seconds": seconds}))  # fmt: skip


def run(own: Any, way: str, count: int) -> int:
    """Publish `count` versions; return how many had a fault or a tensor that was not proved."""
    names, rng = own.weight_names, torch.Generator().manual_seed(0)
    state = load_file(MODEL / "model.safetensors")
    sender, alarms = Sender(transport(way), "right-publications", torch.float32), 0
    for version in range(count):
        scale = SCALES[version % len(SCALES)]
        for value in state.values():
            value += scale * torch.randn(value.shape, generator=rng)
        manifest = sender.publish(state, version)
        assert manifest.digests is not None
        held = own.load_weights(open_weights(manifest), keep=False, prove=True)
        found = arrival(manifest.digests, held, names)
        alarms += bool(found.faults) or found.proved != len(state)
        if (version + 1) % 1000 == 0:
            print(f"{version + 1} publications, {alarms} alarms", file=sys.stderr, flush=True)
    sender.close()
    return alarms


if __name__ == "__main__":
    main()
