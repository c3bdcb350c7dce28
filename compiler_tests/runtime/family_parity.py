"""Prints how far torchtitan's logits are from those of transformers, a tiny model of each family.

    REQUEST = {"folder": ..., "models": {label: [family, changed dims]}}   one process for all

Run by test_family_logits: torchtitan wants a process group. Each model is written by transformers,
loaded by torchtitan, compared, exported by the trainer's own way, and loaded again.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from forgedsl.families import registry
from forgedsl.families.base import Dims, RopeScaling
from forgedsl.lower import job as spec
from forgedsl.records import replace
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import families
from forgedsl_runtime.services.titan.upstream import model as titan

TINY = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 24, "ffn": 96, "vocab": 80,
    "context": 64, "rope_theta": 5e3,
}  # fmt: skip
EXPERTS = {"experts": 8, "active": 3, "ffn": 32}
BATCH = torch.randint(0, 80, (3, 48), generator=torch.Generator().manual_seed(1))


def theirs(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model(BATCH).logits


def dims_of(name: str, changes: dict) -> Dims:
    family = registry.family(name)
    stretched = changes.get("rope_scaling")
    given = changes | ({"rope_scaling": RopeScaling(**stretched)} if stretched else {})
    return family.dims(None, TINY | (EXPERTS if "experts" in family.keys else {}) | given)


def published(family: str, changes: dict, folder: Path) -> None:
    """A model of random weights, norms and biases included, as transformers writes it."""
    config = registry.family(family).write(dims_of(family, changes))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.05)  # about as far apart as scores
    model.save_pretrained(folder)


def from_outside(folder: Path) -> None:
    """The toy family: Llama's layers under a name of its own, known to nobody but this file."""
    toy = replace(registry.family("llama3"), name="toy", model_type="toy_lm")
    registry.FAMILIES = (*registry.FAMILIES, toy)
    families.BUILDERS = (*families.BUILDERS, ("toy", families.llama3.build))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "toy_lm"}))


def ours(folder: Path, parts: object) -> titan.TitanModel:
    service = spec.TitanService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype="f32",
        batch=spec.BatchShape(seq_len=48, rows=3),
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    built = titan.build_model(model, service, folder, parts)
    titan.load_hf_weights(built, folder)
    return built


def logits(built: titan.TitanModel) -> torch.Tensor:
    rows, length = BATCH.shape
    mask = torch.ones(length, length, dtype=torch.bool).tril().expand(rows, 1, -1, -1)
    positions = torch.arange(length).repeat(rows, 1)
    with torch.no_grad():
        return built.hidden_to(lambda h, w, _: h @ w.T, BATCH, positions, mask)


def main() -> None:
    request = json.loads(sys.argv[1])
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    found = {}
    for label, (family, changes) in request["models"].items():
        folder = Path(request["folder"]) / label
        published(family, changes, folder)
        expected = theirs(folder)
        if label == "toy":
            from_outside(folder)
        built = ours(folder, parts)
        gap = float((logits(built) - expected).abs().max())
        state = {k: v.clone() for k, v in built.export_tensors(torch.float32)}
        size = sum(p.numel() for p in built.model.parameters())
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        if label == "toy":  # transformers knows it by Llama's name only
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
        again = float((theirs(folder) - expected).abs().max())
        found[label] = {"gap": gap, "export": again, "parameters": size,
                        "spread": float(expected.std()),
                        "largest": float(expected.abs().max())}  # fmt: skip
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
