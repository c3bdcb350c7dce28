"""Prints how far vLLM's log-probs with an adapter are from those of transformers with the adapter
merged, for each folder named, and how far the adapter moves them.

Run by test_published_adapter: engines take a process for themselves, and share its imports here.
"""

import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from family_vllm import TOKENS, apart
from safetensors.torch import load_file

from forgedsl.adapters import A, B
from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream import adapter
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

RANK = 4
ADAPTED = re.compile(rf"(model\.layers\.\d+\.\w+\.({'|'.join(adapter.LAYERS)}))\.weight")
"""weights that a trainer adapts; experts have longer names"""


def drawn(weights: dict[str, torch.Tensor], seed: int, size: float = 0.2) -> dict[str, Any]:
    """Return an adapter of these weights, under PEFT's names."""
    generator, found = torch.Generator().manual_seed(seed), {}
    for name, value in weights.items():
        if layer := ADAPTED.fullmatch(name):
            found[layer[1] + A] = size * torch.randn(RANK, value.shape[1], generator=generator)
            found[layer[1] + B] = size * torch.randn(len(value), RANK, generator=generator)
    return found


def merged(weights: dict[str, torch.Tensor], added: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights with an adapter merged into them."""
    found = dict(weights)
    for name in (name for name in added if name.endswith(A)):
        layer = name.removesuffix(A)
        change = added[layer + B].double() @ added[name].double()
        weight = weights[f"{layer}.weight"]
        found[f"{layer}.weight"] = (weight.double() + change).to(weight.dtype)
    return found


def theirs(folder: Path, weights: dict[str, torch.Tensor]) -> list[float]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        found = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    return [float(found[i, token]) for i, token in enumerate(TOKENS[1:])]


def adapters(folder: Path) -> list[dict[str, Any]]:
    """Return the adapters that an engine gets, one after the other; the first is none."""
    weights = load_file(folder / "model.safetensors")
    return [{}, drawn(weights, 1), drawn(weights, 2), drawn(weights, 1)]


def scored(folder: Path) -> tuple[list[list[float]], bool]:
    """Return the log-probs under each adapter, and whether the engine has a place for every part of
    one, and no other."""
    service = spec.VllmService(
        model="m", mesh=spec.Mesh(name="m", device="cpu"), dtype="f32", adapter_rank=RANK,
        sampling=spec.Sampling(max_tokens=4), extra={"skip_tokenizer_init": True},
    )  # fmt: skip
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    engine = upstream.Engine(service, model, folder, 1, rank)
    found = []
    for number, each in enumerate(adapters(folder)):
        if each:
            engine.load_weights(each.items(), keep=False)
        found.append(engine.score(f"{number}", TOKENS)[0])
    return found, engine.weight_names == adapters(folder)[1].keys()


def main() -> None:
    folders = [Path(word) for word in sys.argv[1:]]
    wanted = {}
    for folder in folders:  # vLLM changes classes of transformers, so these are first
        weights = load_file(folder / "model.safetensors")
        wanted[folder] = [theirs(folder, merged(weights, each)) for each in adapters(folder)]
    prepare_environment("cpu")
    told = {}
    for folder in folders:
        scores, places = scored(folder)
        told[folder.name] = {
            "gap": max(apart(a, b) for a, b in zip(scores, wanted[folder], strict=True)),
            "moved": apart(scores[0], scores[1]), "places": places,
        }  # fmt: skip
        gc.collect()
    print("RESULT" + json.dumps(told))


if __name__ == "__main__":
    main()
