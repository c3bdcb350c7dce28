"""Random initial weights: equal for any number of ranks, for adapters, and for any stored dtype.

    weights --wide--> in f32 --WholeDraws--> a whole tensor's random numbers --> this rank's part,
    rounded to the stored dtype

A trainer stores weights in f32 and a frozen reference in bf16, yet both must be the same model. So
weights are computed in f32 and rounded once.

DTensor draws each shard alone. In host memory every rank has the same seed, so all shards of a
weight would be equal, and with offload each draw restarts the generator, so all layers would be
equal. On GPUs the numbers would depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}


def initialize(module: Any, device: torch.device, *, offload: bool) -> None:
    """Set the initial weights and buffers of a torchtitan module. It computes on `device`; with
    `offload` its weights are in host memory. Both ways they are drawn on `device`."""
    for part in module.modules():
        if (inits := getattr(part, "_param_init", None)) is not None:
            part._param_init = {name: _wide(init) for name, init in inits.items()}
    with torch.no_grad(), WholeDraws(device):
        module.init_states(buffer_device=device if offload else None)


def _wide(init: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return `init`, computing in f32 whatever the dtype of the weight. It may leave the weight as
    it is, if that is tied to another."""

    def fill(weight: Any) -> None:
        in_f32 = weight.detach().float()
        init(in_f32)
        if in_f32.dtype != weight.dtype:
            weight.copy_(in_f32)

    return fill


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
