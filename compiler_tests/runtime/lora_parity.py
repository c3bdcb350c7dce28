"""Prints what adapters do to tiny models in the folder named; test_lora runs it by itself."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import family_parity as tiny
import torch
from safetensors.torch import save_file

from forgedsl.lower import job as spec
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import lora as adapters
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensor, gather_tensors
from forgedsl_runtime.services.titan.upstream.optimizers import build_optimizer
from forgedsl_runtime.transports.base import Sender
from forgedsl_runtime.transports.registry import transport
from forgedsl_runtime.weight_folders import write_adapter

LORA = spec.Lora(rank=4, alpha=16.0)


def trained(folder: Path, parts: object) -> titan.TitanModel:
    service = spec.TitanService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype="f32",
        batch=spec.BatchShape(seq_len=48, rows=3),
        optimizer=spec.Optimizer(lr=1e-2),
        lora=LORA,
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    built = titan.build_model(model, service, folder, parts)
    titan.load_hf_weights(built, folder)
    return built


def loss_of(built: titan.TitanModel) -> torch.Tensor:
    rows, length = tiny.BATCH.shape
    mask = torch.ones(length, length, dtype=torch.bool).tril().expand(rows, 1, -1, -1)
    positions = torch.arange(length).repeat(rows, 1)
    logits = built.hidden_to(lambda h, w, _: h @ w.T, tiny.BATCH, positions, mask)
    labels = tiny.BATCH[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels)


def learn(built: titan.TitanModel, parts: object) -> list[float]:
    optimizers, _ = build_optimizer(built, spec.Optimizer(lr=1e-2), 20, parts)
    losses = []
    for _ in range(20):
        loss = loss_of(built)
        loss.backward()
        optimizers.step()
        optimizers.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def published(built: titan.TitanModel, lora: spec.Lora) -> float | None:
    """The share of elements that a publication after the training changes, if `lora` says how the
    adapters are merged into it."""
    sender = Sender(transport("shm"), f"lora-{lora.alpha}", torch.float32, gather_tensors)
    sender.publish(replace(built, lora=LORA.model_copy(update={"alpha": 0.0})).hf_state(), 0)
    found = sender.publish(replace(built, lora=lora).hf_state(), 1).changed
    sender.close()
    return found


def weights(built: titan.TitanModel) -> dict[str, torch.Tensor]:
    """What must not move."""
    found = {n: p for n, p in built.model.named_parameters() if "lora" not in n}
    return {n: gather_tensor(p, torch.float32).clone() for n, p in found.items()}


def as_base(built: titan.TitanModel) -> torch.Tensor:
    """Logits with the adapters left out, which changes nothing that training reads."""
    before = {name: gather_tensor(value, value.dtype).clone()
              for name, value in built.model.named_buffers()}  # fmt: skip
    random = torch.get_rng_state()
    with built.as_base():
        found = tiny.logits(built)
    assert built.model.training
    assert torch.get_rng_state().equal(random)
    for name, value in built.model.named_buffers():
        assert gather_tensor(value, value.dtype).equal(before[name]), name
    return found


def written(built: titan.TitanModel, folder: Path) -> None:
    """Write the adapter alone."""
    values = {n: gather_tensor(p, torch.float32) for n, p in built.model.named_parameters()}
    layers = adapters.peft_layers(values, built.adapter.to_hf)
    write_adapter(layers, folder, base="tiny", lora=LORA)


def main() -> None:
    folder = Path(sys.argv[1])
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    found = {}
    for family in ("qwen2", "llama3", "qwen3_moe", "glm4_moe"):
        place = folder / family
        tiny.published(family, {}, place)
        built = trained(place, parts)
        start = float((tiny.logits(built) - tiny.theirs(place)).abs().max())
        base = weights(built)
        shutil.copyfile(place / "model.safetensors", place / "base.safetensors")
        untrained = tiny.logits(built)
        first = float(untrained.abs().max())
        losses = learn(built, parts)
        moved = [n for n, p in weights(built).items() if not p.equal(base[n])]
        logits = tiny.logits(built)
        left_out = as_base(built)
        state = {k: v.clone() for k, v in built.export_tensors(torch.float32)}
        save_file(state, place / "model.safetensors", metadata={"format": "pt"})
        written(built, place / "adapter")
        size = sum(p.numel() for p in built.model.parameters() if p.requires_grad)
        changed = [published(built, LORA), published(built, LORA.model_copy(update={"alpha": 0.0}))]
        found[family] = {"start": start, "losses": [losses[0], losses[-1]], "moved": moved,
                         "changed": changed,
                         "merged": float((logits - tiny.theirs(place)).abs().max()),
                         "largest": [first, float(logits.abs().max())],
                         "left_out": float((left_out - untrained).abs().max()),
                         "again": float((tiny.logits(built) - logits).abs().max()),
                         "trained": size, "folder": str(place)}  # fmt: skip
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
