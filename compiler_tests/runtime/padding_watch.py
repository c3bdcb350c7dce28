"""Prints how many products of bfloat16 a trainer on a CPU makes, none of which may read what nobody
wrote; test_trainer_products runs it by itself: torchtitan wants a process group.

A model of each family, of odd widths where its products take them, with and without adapters, with
a value head: log-probs, values, a step of a loss by both back ends, what generators get.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import family_parity as tiny
import torch

sys.path.append(str(Path(__file__).parents[1] / "numerics"))
from padding import FinitePadding, nothing_written

import forgedsl
from forgedsl.lower import job as spec
from forgedsl_runtime.losses import LossFunction, token_logprobs
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensor
from forgedsl_runtime.services.titan.upstream.optimizers import build_optimizer

ODD = {"hidden": 63, "ffn": 97, "vocab": 83}
CASES = {
    "qwen2": ("qwen2", {}, None),
    "qwen3": ("qwen3", {}, None),
    "qwen3 with adapters": ("qwen3", {}, spec.Lora(rank=3, alpha=16.0)),
    "qwen3_moe": ("qwen3_moe", {"hidden": 64, "ffn": 32}, None),
    "llama3": ("llama3", {"tied": False, "heads": 3, "kv_heads": 1}, None),
}


def built(folder: Path, parts: object, lora: spec.Lora | None) -> titan.TitanModel:
    service = spec.TitanService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype="bf16",
        batch=spec.BatchShape(seq_len=48, rows=3),
        optimizer=spec.Optimizer(lr=1e-2),
        lora=lora,
        value_head=lora is None,
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="bf16", context=64)
    found = titan.build_model(model, service, folder, parts)
    titan.load_hf_weights(found, folder)
    return found


def used(model: titan.TitanModel, parts: object) -> None:
    """What a trainer does with a model, once."""
    rows, length = tiny.BATCH.shape
    labels = tiny.BATCH.roll(-1, 1).flatten()
    mask = torch.ones(length, length, dtype=torch.bool).tril().expand(rows, 1, -1, -1)
    given = (tiny.BATCH, torch.arange(length).repeat(rows, 1), mask)
    sequences = torch.arange(rows).repeat_interleave(length)
    optimizers, _ = build_optimizer(model, spec.Optimizer(lr=1e-2), 2, parts)
    with torch.no_grad():
        flat = lambda h, w, _: token_logprobs(h.flatten(0, 1), w, labels)  # noqa: E731
        assert model.hidden_to(flat, *given).isfinite().all()
    grpo = forgedsl.compile_loss("grpo", params={"entropy_coef": 0.01})
    field = torch.zeros(labels.shape)
    inputs = {name: field[:rows] if name == "adv" else field for name in grpo.input_names}

    def of_rows(
        loss: LossFunction, hidden: torch.Tensor, weight: torch.Tensor, _: object
    ) -> torch.Tensor:
        packed = hidden.flatten(0, 1)
        call = {"hidden": packed, "weight": weight, "labels": labels, "seq_id": sequences}
        found = loss.linear(**call, **inputs).loss
        return found if model.lora else found + model.values(packed).square().mean()

    for backend in ("torch", "triton"):
        model.hidden_to(partial(of_rows, grpo.using(backend)), *given).backward()
        gradients = [p.grad for p in model.model.parameters() if p.grad is not None]
        assert gradients
        assert all(gather_tensor(g, g.dtype).isfinite().all() for g in gradients)
        optimizers.step()
        optimizers.zero_grad()
    assert all(v.isfinite().all() for _, v in model.export_tensors(torch.float32))


def main() -> None:
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    found = {}
    for label, (family, changes, lora) in CASES.items():
        folder = Path(sys.argv[1]) / label
        tiny.published(family, ODD | changes, folder)
        model = built(folder, parts, lora)
        with nothing_written(), FinitePadding() as watch:
            used(model, parts)
        found[label] = {"products": watch.products, "padded": watch.padded}
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
