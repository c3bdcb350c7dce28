"""Optimizers of a trainer, in torchtitan's containers: AdamW, Adam, Muon, SGD.

    weights of the model --groups--> optimizers, one per kind of group --> learning-rate schedulers

Muon takes the matrices of the layers. Embedding, lm_head, routers, norms, biases, stacked experts
and a value head go to AdamW beside it, with the same learning rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forgedsl.lower import job as spec

MATRIX = re.compile(r"^layers\.\d+\.(?!.*\.router\.)")
"""names of weights that Muon takes if they have two dimensions"""


def build_optimizer(
    titan: Any, opt: spec.Optimizer, steps: int, parts: SimpleNamespace
) -> tuple[Any, Any]:
    """Build torchtitan's optimizer and learning-rate containers for `opt`."""
    optimizers = (
        _containers(parts)
        .Config(
            param_groups=[
                parts.ParamGroupConfig(
                    pattern=pattern, optimizer_name=name, optimizer_kwargs=settings
                )
                for pattern, name, settings in _groups(titan.model, opt)
            ],
            implementation="fused_opt_states_bf16" if opt.precision == "bf16_moments" else "fused",
        )
        .build(model_parts=[titan.model])
    )
    if opt.precision == "bf16_moments" and next(titan.model.parameters()).device.type == "cpu":
        for optimizer in optimizers:
            _step_in_f32(optimizer)
    schedulers = parts.LRSchedulersContainer.Config(
        warmup_steps=opt.warmup,
        decay_ratio=0.0 if opt.decay == "none" else None,
        decay_type="linear" if opt.decay == "none" else opt.decay,
    ).build(optimizers=optimizers, training_steps=steps)
    for scheduler in schedulers.schedulers:
        scheduler.lr_lambdas = [_held_after(each, steps - 1) for each in scheduler.lr_lambdas]
    base = parts.OptimizersContainer
    titan.classes["optimizer"] = f"{base.__module__}.{base.__qualname__}"
    titan.classes["scheduler"] = f"{type(schedulers).__module__}.{type(schedulers).__qualname__}"
    return optimizers, schedulers


def _held_after(factor: Callable[[int], float], last: int) -> Callable[[int], float]:
    """Return a schedule that stays at its value of step `last`, counted from 0: torchtitan's ends
    there, but the loop of a Session may go on."""
    return lambda step: factor(min(step, max(0, last)))


def _groups(model: nn.Module, opt: spec.Optimizer) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield pattern of names, optimizer and settings of each group of weights."""
    learnt = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    matrices = [n for n, weight in learnt.items() if weight.ndim == 2 and MATRIX.match(n)]
    name = {"adamw": "AdamW", "adam": "Adam", "muon": "Muon", "sgd": "SGD"}[opt.kind]
    if name == "Muon" and matrices:
        yield f"^({'|'.join(map(re.escape, matrices))})$", name, settings_of(name, opt)
    if name != "Muon":
        yield ".*", name, settings_of(name, opt)
    elif len(matrices) < len(learnt):
        yield ".*", "AdamW", settings_of("AdamW", opt)


def settings_of(name: str, opt: spec.Optimizer) -> dict[str, Any]:
    """Return the settings of a parameter group for torch's optimizer of this name."""
    common = {"lr": opt.lr, "weight_decay": opt.weight_decay}
    own: dict[str, Any]
    if name == "SGD":
        own = {"momentum": opt.momentum, "nesterov": opt.nesterov, "fused": False, "foreach": True}
    elif name == "Muon":
        own = {"momentum": opt.momentum, "nesterov": opt.nesterov, "ns_steps": opt.ns_steps,
               "adjust_lr_fn": opt.adjust_lr}  # fmt: skip
    else:
        own = {"betas": tuple(opt.betas), "eps": opt.eps}
    return common | own


def _containers(parts: Any) -> Any:
    """Extend torchtitan's container of optimizers by Muon and SGD. Its own Muon is not used: that
    one needs a separate device mesh."""

    class Optimizers(parts.OptimizersContainer):
        @dataclass(kw_only=True, slots=True)
        class Config(parts.OptimizersContainer.Config):
            pass

        @staticmethod
        def _resolve_optimizer_factory(name: str) -> Callable[..., torch.optim.Optimizer]:
            known = {"Muon": Muon, "SGD": torch.optim.SGD}
            found = known.get(name) or parts.OptimizersContainer._resolve_optimizer_factory(name)
            made: Callable[..., torch.optim.Optimizer] = found
            return made

    return Optimizers


class Muon(torch.optim.Muon):
    """torch's Muon, for weights that may be sharded over ranks. Each rank keeps its shard of the
    momentum; all ranks compute the same update from the whole matrix."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        assert closure is None
        for group in self.param_groups:
            for weight in (each for each in group["params"] if each.grad is not None):
                update: Any = self._next_momentum(weight, group)
                turned = _orthogonal(
                    update.full_tensor() if isinstance(update, DTensor) else update, group
                )
                if isinstance(weight, DTensor):
                    turned = _part_of(turned, weight.device_mesh, weight.placements)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(turned, alpha=-_rate(group, weight.shape))

    def _next_momentum(self, weight: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the momentum after this gradient; with Nesterov, the momentum one step ahead."""
        gradient, state, momentum = weight.grad, self.state[weight], group["momentum"]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        kept: Tensor = state["momentum_buffer"]
        kept.lerp_(gradient, 1 - momentum)
        return gradient.lerp(kept, momentum) if group["nesterov"] else kept


def _orthogonal(update: Tensor, group: dict[str, Any]) -> Tensor:
    from torch.optim import _muon

    found: Tensor = _muon._zeropower_via_newtonschulz(
        update, group["ns_coefficients"], group["ns_steps"], group["eps"]
    )
    return found


def _rate(group: dict[str, Any], shape: torch.Size) -> float:
    from torch.optim import _muon

    return float(_muon._adjust_lr(group["lr"], group["adjust_lr_fn"], shape))


def _part_of(whole: Tensor, mesh: Any, placements: Any) -> Tensor:
    """Return this rank's part of a tensor that all ranks have, without sending anything."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * mesh.ndim
    found: Any = DTensor.from_local(whole, mesh, everywhere, run_check=False)
    part: Tensor = found.redistribute(mesh, placements)
    return part


def _step_in_f32(optimizer: torch.optim.Optimizer) -> None:
    """Let Adam on CPUs step in f32 with moments stored in bf16, as on GPUs. The CPU kernel supports
    only one dtype."""

    def cast(dtype: torch.dtype) -> Callable[..., None]:
        def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for state in optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    if name in state:
                        state[name] = state[name].to(dtype)

        return hook

    optimizer.register_step_pre_hook(cast(torch.float32))
    optimizer.register_step_post_hook(cast(torch.bfloat16))


def set_optimizer(optimizers: Any, schedulers: Any, opt: spec.Optimizer) -> None:
    """Set the hyperparameters of `opt` in optimizers and schedulers, at their current step."""
    for optimizer in optimizers:
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            group.update(settings_of(name, opt), initial_lr=opt.lr)
    for scheduler in schedulers.schedulers:
        scheduler.base_lrs = [opt.lr] * len(scheduler.base_lrs)
        rates = [opt.lr * factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        scheduler._last_lr = rates
        for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@contextmanager
def with_learning_rate(optimizers: Any, lr: float | None) -> Iterator[None]:
    """Step with another learning rate than that of the schedule, unless it is None."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    before = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = group["lr"] if lr is None else lr
    try:
        yield
    finally:
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate


def complete_moments(optimizers: Any) -> None:
    """Add zero moments for weights that had no gradient (a head that no loss reads), because
    loading a checkpoint expects moments of all weights."""
    for optimizer in optimizers:
        known = next(iter(optimizer.state.values()), None)
        for weight in (w for group in optimizer.param_groups for w in group["params"]):
            if known and weight.requires_grad and weight not in optimizer.state:
                optimizer.state[weight] = {
                    name: torch.zeros_like(value if name == "step" else weight, dtype=value.dtype)
                    for name, value in known.items()
                }
