"""Publishes weights to an engine, with a fault planted into each second publication; prints what
the proofs say of each.

Run by test_planted_publications: vLLM takes a process for itself. Arguments: an empty folder, and
how the engine starts, `random` or `folder`.
"""

import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from small_engine import small_engine

from forgedsl_runtime.proofs.publication import Arrival
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream import loading
from forgedsl_runtime.transports import base
from forgedsl_runtime.transports.registry import open_weights, transport

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "pipelines/models/tiny_math"
WAYS = ("shm", "tcp")
PROBE = [3 + (7 * at) % 40 for at in range(12)]
LEFT_OUT = "model.layers.1.mlp.up_proj.weight"


def planting() -> Any:
    """The module that plants faults into whole runs."""
    path = HERE.parent / "deep/plant_weights/sitecustomize.py"
    found = importlib.util.spec_from_file_location("plant_weights", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Receiver:
    """An engine that loads publications as the actor of a generator does."""

    def __init__(self, own: upstream.Engine) -> None:
        self._own, self._scored = own, 0

    def load(self, manifest: base.Manifest, weights: Iterable[Any] | None = None) -> Arrival:
        """Load what `manifest` announces, or only `weights` of it."""
        given = open_weights(manifest) if weights is None else iter(weights)
        held = self._own.load_weights(given, keep=False, prove=True)
        assert manifest.digests is not None
        return self._own.compare(manifest.digests, held)

    def score(self) -> list[float]:
        """Return the log-probs of a fixed text."""
        self._scored += 1
        return self._own.score(f"probe {self._scored}", PROBE)[0]


def first(own: upstream.Engine) -> dict[str, Any]:
    """Return what is said of a first publication that brings nothing, of one whose head is not
    packed for the CPU, and of one without one of its tensors; then of the right one."""
    receiver = Receiver(own)
    sender = base.Sender(transport("shm"), "first", torch.float32)
    manifest = sender.publish(load_file(TINY / "model.safetensors"), 0)
    found: dict[str, Any] = {"random": own.random, "nothing": told(receiver.load(manifest, []))}
    pack, loading.repack = loading.repack, lambda model: None
    found["unpacked"] = told(receiver.load(manifest)) | {"logprobs": receiver.score()}
    loading.repack = pack
    some = (each for each in open_weights(manifest) if each[0] != LEFT_OUT)
    found["left out"] = told(receiver.load(manifest, some))
    found["right"] = told(receiver.load(manifest)) | {"logprobs": receiver.score()}
    sender.close()
    return found


def told(found: Arrival) -> dict[str, Any]:
    return {"faults": list(found.faults), "proved": found.proved}


def later(own: upstream.Engine) -> dict[str, Any]:
    """Return what is said of each fault on each way, and of the right publication after it."""
    receiver, plant = Receiver(own), planting()
    state = load_file(TINY / "model.safetensors")
    found: dict[str, Any] = {}
    for way in WAYS:
        sender = base.Sender(transport(way), f"planted-{way}", torch.float32)
        assert receiver.load(sender.publish(state, 0)).faults == ()
        for number, fault in enumerate(plant.FAULTS):
            state = {name: value * (1 + 1e-3) for name, value in state.items()}
            turn = sender._turn
            manifest = sender.publish(state, 2 * number + 1)
            plant.spoil(fault, base, sender, turn)
            found[f"{way} {fault}"] = told(receiver.load(manifest))
            again = sender.publish(state, 2 * number + 2)
            found[f"{way} after {fault}"] = told(receiver.load(again))
        sender.close()
    return found


def skipped(own: upstream.Engine) -> list[float]:
    """Return how far log-probs of a trainer after an update are from those of an engine that had
    the version before, token by token."""
    receiver, sender = Receiver(own), base.Sender(transport("shm"), "skipped", torch.float32)
    state = load_file(TINY / "model.safetensors")
    assert receiver.load(sender.publish(state, 0)).faults == ()
    before = receiver.score()
    updated = {name: value * (1 + 1e-3) for name, value in state.items()}
    assert receiver.load(sender.publish(updated, 1)).faults == ()
    sender.close()
    return [abs(a - b) for a, b in zip(before, receiver.score(), strict=True)]


def main(folder: str, start: str) -> None:
    own = small_engine(TINY, Path(folder) / "rendezvous", random=start == "random")
    found = first(own)
    if start == "random":
        found |= later(own) | {"skipped": skipped(own)}
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
