"""Prints how far trained steps are from AdamW written out, for each `optimizer.precision`.

Run by test_precision: torchtitan wants a process group. The gradients are the model's own; what is
asked is what an update makes of them, what is kept, and what a checkpoint gives back. Offload is
FSDP's; there is no pinned memory where there is no GPU.
"""

import json
import sys
from pathlib import Path

import family_parity as tiny
import torch
from lora_parity import loss_of
from torch.distributed.fsdp import CPUOffloadPolicy

from forgedsl.lower import job as spec
from forgedsl.services.titan.facts import KIND
from forgedsl.services.titan.memory import TrainerShape, state_items
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensor
from forgedsl_runtime.services.titan.upstream.optimizers import build_optimizer

OPT = spec.Optimizer(lr=1e-2, eps=1e-6, weight_decay=0.1, betas=(0.9, 0.95))
STEPS = 4
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CASES = {
    "f32": ("f32", "f32", False),
    "bf16_moments": ("f32", "bf16_moments", False),
    "bf16": ("bf16", "bf16", False),
    "f32 offloaded": ("f32", "f32", True),
    "bf16_moments offloaded": ("bf16", "bf16_moments", True),
}


def built(folder: Path, parts: object, case: str) -> titan.TitanModel:
    dtype, precision, offload = CASES[case]
    service = spec.TitanService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype=dtype,
        batch=spec.BatchShape(seq_len=48, rows=3),
        optimizer=OPT.model_copy(update={"precision": precision}),
        offload=offload,
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    found = titan.build_model(model, service, folder, parts)
    titan.load_hf_weights(found, folder)
    return found


def kept(case: str) -> tuple[torch.dtype, torch.dtype]:
    """Of weights, of moments."""
    precision = CASES[case][1]
    return {
        "f32": (torch.float32, torch.float32),
        "bf16_moments": (torch.float32, torch.bfloat16),
        "bf16": (torch.bfloat16, torch.bfloat16),
    }[precision]


def adamw(
    weight: torch.Tensor, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, step: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """1711.05101 in f32; what it returns has yet to be rounded to what is kept."""
    (b1, b2), weight = OPT.betas, weight.float() * (1 - OPT.lr * OPT.weight_decay)
    first = b1 * first.float() + (1 - b1) * grad.float()
    second = b2 * second.float() + (1 - b2) * grad.float() ** 2
    ahead = (first / (1 - b1**step)) / ((second / (1 - b2**step)).sqrt() + OPT.eps)
    return weight - OPT.lr * ahead, first, second


def beyond(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How far off each is; what is rounded to bf16 may be its other neighbour."""
    rounding = 2**-7 * expected.float().abs() if expected.dtype == torch.bfloat16 else 0.0
    return ((found.float() - expected.float()).abs() - rounding).clamp(min=0.0)


def local(value: torch.Tensor) -> torch.Tensor:
    return gather_tensor(value, value.dtype).clone()


def trained(folder: Path, parts: object, case: str) -> dict:
    model = built(folder, parts, case)
    opt = OPT.model_copy(update={"precision": CASES[case][1]})
    optimizers, _ = build_optimizer(model, opt, STEPS, parts)
    of_weight, of_moments = kept(case)
    weights = {n: local(p) for n, p in model.model.named_parameters()}
    zero = {n: torch.zeros_like(w, dtype=of_moments) for n, w in weights.items()}
    moments = {n: (z, z.clone()) for n, z in zero.items()}
    losses, gap = [], 0.0
    for step in range(1, STEPS + 1):
        loss = loss_of(model)
        loss.backward()
        losses.append(float(loss.detach()))
        grads = {n: local(p.grad) for n, p in model.model.named_parameters()}
        optimizers.step()
        optimizers.zero_grad()
        for name, value in model.model.named_parameters():
            new = adamw(weights[name], *moments[name], grads[name], step)
            expected = new[0].to(of_weight)
            change = (expected.float() - weights[name].float()).abs().max()
            gap = max(gap, float((beyond(local(value), expected) / change).max()))
            weights[name] = local(value)
            moments[name] = (new[1].to(of_moments), new[2].to(of_moments))
    return {"losses": losses, "gap": gap, "bytes": held(model, optimizers, grads),
            "again": again(folder, parts, case, model, optimizers)}  # fmt: skip


def held(model: titan.TitanModel, optimizers: object, grads: dict) -> int:
    """Bytes of weights, moments and gradients."""
    found = [*model.model.parameters(), *grads.values()]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            found += [state["exp_avg"], state["exp_avg_sq"]]
    return sum(value.numel() * value.element_size() for value in found)


def planned(folder: Path, case: str) -> int:
    dims = tiny.dims_of("qwen3", {})
    shape = TrainerShape(
        dims=dims, device="cpu", degrees=dict.fromkeys(KIND.degrees, 1), itemsize=4, trained=True,
        checkpointing="none", seq_len=48, rows=3, published=0, precision=CASES[case][1],
    )  # fmt: skip
    return sum(item.bytes for item in state_items(shape))


def again(
    folder: Path, parts: object, case: str, model: titan.TitanModel, optimizers: object
) -> bool:
    """Whether a trainer made from a checkpoint has the same weights and moments after a step."""
    opt = OPT.model_copy(update={"precision": CASES[case][1]})
    found = []
    other = built(folder, parts, case)
    more = build_optimizer(other, opt, STEPS, parts)
    managers = [
        titan.build_checkpointer(
            each, folder=folder / f"{case} checkpoints", source=None, optimizers=opts,
            schedulers=more[1], states={}, parts=parts,
        )
        for each, opts in ((model, optimizers), (other, more[0]))
    ]  # fmt: skip
    managers[0].save(STEPS, last_step=True)
    managers[1].load(STEPS)
    for each, opts in ((model, optimizers), (other, more[0])):
        loss_of(each).backward()
        opts.step()
        opts.zero_grad()
        found.append({n: local(p) for n, p in each.model.named_parameters()})
    return all(found[0][name].equal(found[1][name]) for name in found[0])


def main() -> None:
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    from torchtitan.distributed import fsdp  # it asks for the device when it is imported

    fsdp.CPUOffloadPolicy = lambda: CPUOffloadPolicy(pin_memory=False)
    found = {}
    for case in CASES:
        folder = Path(sys.argv[1]) / case
        tiny.published("qwen3", {}, folder)
        found[case] = trained(folder, parts, case) | {"planned": planned(folder, case)}
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
