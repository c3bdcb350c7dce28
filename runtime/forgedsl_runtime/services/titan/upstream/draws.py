"""Random initial weights: equal for any split over ranks, for adapters, and for any stored dtype.

    whole module --initial--> weights in order --initialize--> weights of this rank
    in f32 --WholeDraws--> a whole tensor's random numbers --> this rank's part, rounded

A trainer stores weights in f32 and a frozen reference in bf16, yet both must be the same model. So
weights are computed in f32 and rounded once. A stage of a pipeline draws the weights of all stages
and keeps its own.

DTensor draws each shard alone. In host memory every rank has the same seed, so all shards of a
weight would be equal, and with offload each draw restarts the generator, so all layers would be
equal. On GPUs the numbers would depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}


class Initial(NamedTuple):
    """How a weight of a whole model begins."""

    name: str
    shape: torch.Size
    init: Callable[[Any], Any]


def initial(module: Any) -> list[Initial]:
    """Return the weights of a whole torchtitan module, in the order in which torchtitan initializes
    them. Call before the module is split into stages, or wrapped."""
    from torchtitan.protocols.module import Module

    found: list[Initial] = []

    def visit(part: Any, prefix: str) -> None:
        children = [(f"{prefix}{name}.", child) for name, child in part.named_children()]
        while children:
            inside, child = children.pop(0)
            if isinstance(child, Module):
                visit(child, inside)
            else:
                children += [(f"{inside}{n}.", each) for n, each in child.named_children()]
        inits = getattr(part, "_param_init", None) or {}
        found.extend(
            Initial(prefix + name, value.shape, inits[name])
            for name, value in part.named_parameters(recurse=False)
            if name in inits
        )

    visit(module, "")
    return found


def initialize(
    module: Any, weights: Sequence[Initial], device: torch.device, *, offload: bool
) -> None:
    """Set the initial weights and buffers of a torchtitan module, which may be a stage of a
    pipeline; `weights` are those of the whole model. It computes on `device`; with `offload` its
    weights are in host memory. Both ways they are drawn on `device`."""
    here = parameters(module)
    found = {id(here[each.name]) for each in weights if each.name in here}
    for part in module.modules():
        if (inits := getattr(part, "_param_init", None)) is not None:
            own = dict(part.named_parameters(recurse=False))
            assert all(id(value) in found for name, value in own.items() if name in inits)
            part._param_init = dict.fromkeys(inits, _leave)
    with torch.no_grad(), WholeDraws(device):
        for name, shape, init in weights:
            if (value := here.get(name)) is None:  # of another stage, drawn to be passed over
                init(torch.empty(shape, device=device))
            else:
                _fill(value, init)
        module.init_states(buffer_device=device if offload else None)


def parameters(module: Any) -> dict[str, Any]:
    """Return the parameters of a module by their names in the model, whether or not layers are
    wrapped to be recomputed. A tied one has each of its names."""
    prefix = checkpoint_wrapper._CHECKPOINT_PREFIX
    every = module.named_parameters(remove_duplicate=False)
    return {name.replace(prefix, ""): value for name, value in every}


def _leave(weight: Any) -> None:
    """Leave a weight as it is."""


def _fill(weight: Any, init: Callable[[Any], Any]) -> None:
    """Initialize a weight, computing in f32 whatever its dtype. `init` may leave it as it is, if it
    is tied to another."""
    in_f32 = weight.detach().float()
    init(in_f32)
    if in_f32.dtype != weight.dtype:
        weight.copy_(in_f32)


class WholeDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, shards are cut from random numbers drawn for the whole tensor on `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        kwargs = kwargs or {}
        if func not in DRAWS or not isinstance(args[0], DTensor):
            return func(*args, **kwargs)
        value, local = args[0], args[0]._local_tensor
        if not local.is_meta:
            empty = torch.empty(value.shape, dtype=local.dtype, device=self._device)
            whole = func(empty, *args[1:], **kwargs)
            _, starts = compute_local_shape_and_global_offset(
                value.shape, value.device_mesh, value.placements
            )
            mine = (slice(at, at + n) for at, n in zip(starts, local.shape, strict=True))
            local.copy_(whole[tuple(mine)])
        return value
