"""Random initial weights in host memory: equal for any number of ranks, different for all tensors.

On GPUs, DTensor draws the random numbers of a whole tensor, and each shard is its part of them. In
host memory DTensor draws each shard alone, which goes wrong in two ways. On CPUs every rank has the
same seed, so all shards of a weight would be equal. With offload each draw restarts the generator,
so all layers would be equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}


class WholeDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, shards in host memory are cut from random numbers drawn for the whole
    tensor."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        kwargs = kwargs or {}
        if func not in DRAWS or not isinstance(args[0], DTensor) or args[0]._local_tensor.is_cuda:
            return func(*args, **kwargs)
        value, local = args[0], args[0]._local_tensor
        if not local.is_meta:
            whole = func(torch.empty(value.shape, dtype=local.dtype), *args[1:], **kwargs)
            _, starts = compute_local_shape_and_global_offset(
                value.shape, value.device_mesh, value.placements
            )
            mine = (slice(at, at + n) for at, n in zip(starts, local.shape, strict=True))
            local.copy_(whole[tuple(mine)])
        return value
