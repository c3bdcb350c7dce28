"""Prints whether steps of a trainer are those of torch's own optimizers, for each kind.

Run by test_optimizers: torchtitan wants a process group. torch's optimizers step copies of the
weights with the gradients of the model.
"""

import json
import sys
from pathlib import Path

import family_parity as tiny
import torch
from lora_parity import loss_of
from precision_parity import local

from forgedsl.lower import job as spec
from forgedsl.services.titan.facts import KIND
from forgedsl.services.titan.memory import TrainerShape, state_items
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream.optimizers import build_optimizer, complete_moments

STEPS = 4
COMMON = {"lr": 1e-2, "weight_decay": 0.1}
MUON = {"momentum": 0.9, "nesterov": True, "ns_steps": 4, "adjust_lr_fn": "match_rms_adamw"}
CASES = {
    "muon": ("muon", MUON),
    "muon original": ("muon", MUON | {"nesterov": False, "adjust_lr_fn": "original"}),
    "muon of experts": ("muon", MUON),
    "sgd": ("sgd", {}),
    "sgd with momentum": ("sgd", {"momentum": 0.9, "nesterov": True}),
    "adam": ("adam", {}),
}


def optimizer_of(case: str) -> spec.Optimizer:
    kind, settings = CASES[case]
    given = {"adjust_lr" if name == "adjust_lr_fn" else name: v for name, v in settings.items()}
    return spec.Optimizer(kind=kind, eps=1e-6, **COMMON, **given)


def theirs(case: str, weights: dict[str, torch.Tensor]) -> list[torch.optim.Optimizer]:
    """torch's optimizers over these weights, as a person would write them."""
    kind, settings = CASES[case]
    if kind == "sgd":
        return [torch.optim.SGD(weights.values(), **COMMON, **settings)]
    adam = {"betas": (0.9, 0.95), "eps": 1e-6, "fused": True}
    if kind == "adam":
        return [torch.optim.Adam(weights.values(), **COMMON, **adam)]
    matrices = [n for n, w in weights.items() if n.startswith("layers.") and w.ndim == 2
                and "router" not in n]  # fmt: skip
    rest = [weight for name, weight in weights.items() if name not in matrices]
    return [
        torch.optim.Muon([weights[name] for name in matrices], **COMMON, **settings),
        torch.optim.AdamW(rest, **COMMON, **adam),
    ]


def built(folder: Path, parts: object, case: str) -> titan.TitanModel:
    service = spec.TitanService(
        model="m",
        mesh=spec.Mesh(name="m", device="cpu"),
        dtype="f32",
        batch=spec.BatchShape(seq_len=48, rows=3),
        optimizer=optimizer_of(case),
    )
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=64)
    found = titan.build_model(model, service, folder, parts)
    titan.load_hf_weights(found, folder)
    return found


def trained(folder: Path, parts: object, case: str, family: str) -> dict:
    model = built(folder, parts, case)
    optimizers, schedulers = build_optimizer(model, optimizer_of(case), STEPS, parts)
    copies = {n: torch.nn.Parameter(local(p)) for n, p in model.model.named_parameters()}
    others = theirs(case, copies)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        losses.append(float(loss.detach()))
        for name, weight in model.model.named_parameters():
            copies[name].grad = local(weight.grad)
        for optimizer in (optimizers, *others):
            optimizer.step()
            optimizer.zero_grad()
    weights = {n: local(p) for n, p in model.model.named_parameters()}
    held = [v for o in optimizers for s in o.state.values() for n, v in s.items() if n != "step"]
    complete_moments(optimizers)
    return {
        "losses": losses,
        "equal": all(weights[name].equal(copies[name].detach()) for name in weights),
        "bytes": sum(v.numel() * v.element_size() for v in [*held, *2 * list(weights.values())]),
        "planned": planned(family, case),
        "again": again(folder, parts, case, model, optimizers, schedulers),
    }


def planned(family: str, case: str) -> int:
    opt = optimizer_of(case)
    shape = TrainerShape(
        dims=tiny.dims_of(family, {}), device="cpu", degrees=dict.fromkeys(KIND.degrees, 1),
        itemsize=4, trained=True, checkpointing="none", seq_len=48, rows=3, published=0,
        optimizer=opt.kind, momentum=opt.momentum,
    )  # fmt: skip
    return sum(item.bytes for item in state_items(shape))


def again(
    folder: Path,
    parts: object,
    case: str,
    model: titan.TitanModel,
    optimizers: object,
    rates: object,
) -> bool:
    """Whether a trainer made from a checkpoint has the same weights after a step."""
    other = built(folder, parts, case)
    more, other_rates = build_optimizer(other, optimizer_of(case), STEPS, parts)
    rows = ((model, optimizers, rates), (other, more, other_rates))
    managers = [
        titan.build_checkpointer(
            each, folder=folder / "checkpoints", source=None, optimizers=opts,
            schedulers=schedulers, states={}, parts=parts,
        )
        for each, opts, schedulers in rows
    ]  # fmt: skip
    managers[0].save(STEPS, last_step=True)
    managers[1].load(STEPS)
    found = []
    for each, opts, _ in rows:
        loss_of(each).backward()
        opts.step()
        opts.zero_grad()
        found.append({n: local(p) for n, p in each.model.named_parameters()})
    return all(found[0][name].equal(found[1][name]) for name in found[0])


def main() -> None:
    store = rendezvous_store()
    parts = titan.init_distributed("cpu", 0, 0, 1, store.host, store.port)
    found = {}
    for case in CASES:
        folder = Path(sys.argv[1]) / case
        family = "qwen3_moe" if "experts" in case else "qwen2"
        tiny.published(family, {}, folder)
        found[case] = trained(folder, parts, case, family)
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
