"""Publishes adapters to one engine, with faults planted into some; prints what the proofs say, and
what is sampled across a swap.

Run by test_published_adapter: vLLM takes a process for itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from engine_paths import PROMPTS, Played, engine, plain, swapped, through_vllm
from family_adapters import RANK, drawn
from safetensors.torch import load_file

from forgedsl.adapters import B
from forgedsl.lower import job as spec
from forgedsl_runtime.proofs.publication import Arrival, Digest, arrival, with_base
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.transports import base
from forgedsl_runtime.transports.registry import open_weights, transport

LAYER = "model.layers.1.mlp.down_proj"
FUSED = "model.layers.0.self_attn.qkv_proj"


def load(own: upstream.Engine, manifest: base.Manifest, weights: Any = None) -> dict[str, Any]:
    """Load a publication as the actor of a generator does; return what is said of it."""
    given = open_weights(manifest) if weights is None else iter(weights)
    held = own.load_weights(given, keep=False, prove=True)
    assert manifest.digests is not None
    return told(arrival(manifest.digests, held, own.weight_names))


def told(found: Arrival) -> dict[str, Any]:
    return {
        "faults": list(found.faults), "proved": found.proved, "placeless": list(found.placeless),
        "base": found.base, "base_faults": list(found.base_faults),
    }  # fmt: skip


def based(own: upstream.Engine, digests: dict[str, Digest]) -> dict[str, Any]:
    return told(with_base(Arrival(), digests, own.base))


def proofs(own: upstream.Engine, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return what is said of right publications and of faulty ones."""
    sender = base.Sender(transport("shm"), "adapter", torch.float32)
    first, second = drawn(weights, 1), drawn(weights, 2)
    found: dict[str, Any] = {"right": load(own, sender.publish(first, 0))}
    (layers,) = own._engine.apply_model(lambda model: model.lora_manager.modules)
    for name, layer in (("not swapped", LAYER), ("fused not swapped", FUSED)):
        put, reset = layers[layer].set_lora, layers[layer].reset_lora
        layers[layer].set_lora = layers[layer].reset_lora = lambda *_: None
        found[name] = load(own, sender.publish(second, 1))
        layers[layer].set_lora, layers[layer].reset_lora = put, reset
        found[f"after {name}"] = load(own, sender.publish(first, 2))
    manifest = sender.publish(second, 3)
    some = [each for each in open_weights(manifest) if each[0] != LAYER + B]
    found["left out"] = load(own, manifest, some)
    (slots,) = own._engine.apply_model(lambda model: model.lora_manager.modules[LAYER])
    found["right again"] = load(own, manifest)
    slots.lora_b_stacked[0][0, 0, 3, RANK] = 1.0  # beyond the rank of the adapter
    held = own._held.take()
    assert manifest.digests is not None
    found["beyond its rank"] = told(arrival(manifest.digests, held, own.weight_names))
    digests = sender.digests(weights)
    found["base"] = based(own, digests)
    other = weights | {"model.norm.weight": weights["model.norm.weight"] + 1}
    found["another base"] = based(own, sender.digests(other))
    sender.close()
    return found


def crossing(own: upstream.Engine, weights: dict[str, torch.Tensor], *, keep: bool) -> Any:
    """Sample across a swap; return how far the log-probs of the tokens before and after it are, at
    most, from those of the same texts under the first and the second adapter."""
    adapters = [drawn(weights, seed, size=0.05) for seed in (1, 2)]
    own.load_weights(adapters[0].items(), keep=False)
    for i, prompt in enumerate(PROMPTS[:12]):
        own.add(f"{keep} {i}", prompt, spec.Sampling(max_tokens=20), i)
    done = [each for _ in range(4) for each in own.step()]
    ended = {each.request_id for each in done}
    before = own.progress(keep=keep)
    own.load_weights(adapters[1].items(), keep=keep)
    while own.num_running:
        done += own.step()
    found = []
    for number, adapter in enumerate(adapters):
        own.load_weights(adapter.items(), keep=False)
        apart: list[list[float]] = [[], []]
        for each in (each for each in done if each.request_id not in ended):
            prompt = PROMPTS[int(each.request_id.split()[1])]
            name = f"{number} {each.request_id}"
            scores = own.score(name, prompt + each.token_ids)[0][len(prompt) - 1 :]
            for at, (a, b) in enumerate(zip(scores, each.logprobs, strict=True)):
                apart[at >= before[each.request_id]].append(abs(a - b))
        found.append([max(part) for part in apart])
    return {"tokens": [len(part) for part in apart], "apart": found}


def main() -> None:
    folder = Path(sys.argv[1])
    weights = load_file(folder / "model.safetensors")
    own = engine(folder, adapter_rank=RANK)
    found: dict[str, Any] = {"proofs": proofs(own, weights), "random": own.random}
    found["crossing"] = {str(keep): crossing(own, weights, keep=keep) for keep in (False, True)}
    played = Played(own, list(drawn(weights, 3, size=0.1).items()))
    for way in ("ours", "theirs"):
        if way == "theirs":
            through_vllm(own)
        before = own._scheduler.num_short
        found[way] = {act.__name__: played.play(act) for act in (plain, swapped)}
        found[f"{way} short"] = own._scheduler.num_short - before
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
