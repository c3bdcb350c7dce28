"""Prints how far vLLM's log-probs are from those of transformers, for each folder named, and how
far they move when the same weights are loaded again, and after others were. Also how many tensors
of its files an engine holds bit for bit, of how many.

Run by test_family_logits: engines take a process for themselves, and share its imports here.
"""

import gc
import json
import sys
from pathlib import Path

from safetensors.torch import load_file

from forgedsl.lower import job as spec
from forgedsl_runtime.proofs import frozen
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

TOKENS = list(range(3, 43))


def theirs(folder: Path) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    return [float(found[i, token]) for i, token in enumerate(TOKENS[1:])]


def scored(folder: Path) -> tuple[list[list[float]], frozen.Frozen]:
    service = spec.VllmService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype="f32",
        sampling=spec.Sampling(max_tokens=4),
        extra={"skip_tokenizer_init": True},
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    engine_rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    engine = upstream.Engine(service, model, folder, 1, engine_rank, record=True)
    held = frozen.check_parts(folder, engine.base)
    found = [engine.score("a", TOKENS)[0]]
    weights = load_file(folder / "model.safetensors")
    for name, factor in (("same", 1.0), ("others", 1.1), ("first", 1.0)):
        loaded = ((key, factor * value) for key, value in weights.items())
        engine.load_weights(loaded, keep=False)
        found.append(engine.score(name, TOKENS)[0])
    return found, held


def apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main() -> None:
    prepare_environment("cpu")
    from vllm.distributed import cleanup_dist_env_and_memory

    found = {}
    for folder in map(Path, sys.argv[1:]):
        expected, ((got, same, others, again), held) = theirs(folder), scored(folder)
        found[folder.name] = {
            "gap": apart(got, expected),
            "reloaded": max(apart(got, same), apart(got, again)),
            "changed": apart(got, others),
            "proved": (held.proved, held.tensors),
        }
        gc.collect()
        cleanup_dist_env_and_memory()  # vLLM makes a group for experts only if a model has some
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
