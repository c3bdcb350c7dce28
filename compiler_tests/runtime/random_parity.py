"""Prints which random weights of services differ from those of a trainer of the same model.

Run by test_random_models: torchtitan wants a process group.
"""

import json
import sys
from pathlib import Path

import family_parity as tiny
import torch

from forgedsl.families import registry
from forgedsl.lower import job as spec
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensor

ADAM = spec.Optimizer(lr=1e-2)
LORA = spec.Lora(rank=4, alpha=16.0)
CASES = {
    "reference": {},
    "adapters": {"optimizer": ADAM, "lora": LORA},
    "adapters in bf16": {"optimizer": ADAM.model_copy(update={"precision": "bf16"}), "lora": LORA},
    "recomputed": {"optimizer": ADAM, "lora": LORA, "activation_checkpoint": "selective"},
    "value head": {"optimizer": ADAM, "value_head": True},
    "bf16": {"optimizer": ADAM.model_copy(update={"precision": "bf16"})},
}
"""settings of services in bf16"""


def weights(folder: Path, parts: object, settings: dict, seed: int = 5) -> dict[str, torch.Tensor]:
    """What a service publishes or exports: whole weights, without adapters, bf16."""
    service = spec.TitanService(
        model="m", mesh=spec.Mesh(name="m", device="cpu"), dtype="bf16",
        batch=spec.BatchShape(seq_len=48, rows=3), **settings,
    )  # fmt: skip
    model = spec.Model(source=spec.RandomModel(seed=seed), dtype="bf16", context=64)
    built = titan.build_model(model, service, folder, parts)
    for name, value in built.model.named_parameters():
        if name.endswith("lora_a.weight"):  # uniform up to 1 / sqrt(inputs)
            found = gather_tensor(value, torch.float32)
            assert 0.9 < found.abs().max() * found.shape[1] ** 0.5 <= 1.01, name
    return dict(built.export_tensors(torch.bfloat16, base=True))


def differing(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return sorted(name for name, value in found.items() if not value.equal(expected[name]))


def main() -> None:
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    found: dict[str, dict[str, list[str]]] = {}
    for family in ("qwen3", "qwen3_moe", "glm4_moe"):
        folder = Path(sys.argv[1]) / family
        folder.mkdir()
        config = registry.family(family).write(tiny.dims_of(family, {}))
        (folder / "config.json").write_text(json.dumps(config))
        trainer = weights(folder, parts, {"optimizer": ADAM})
        found[family] = {
            case: differing(weights(folder, parts, settings), trainer)
            for case, settings in CASES.items()
        }
        another = weights(folder, parts, {"optimizer": ADAM}, seed=6)
        found[family]["another seed"] = differing(another, trainer)
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
