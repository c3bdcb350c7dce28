"""Random weights in the host's memory: the same on any number of ranks, and no two alike.

DTensor has GPUs draw for a tensor's shards what its whole would get. Elsewhere it does not: on CPUs
every rank starts from the same seed, so that all shards of a weight are equal, and in the host's
memory under a mesh of GPUs (offload) each draw starts anew, so that all layers are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}


class WholeDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is open, shards in the host's memory are cut from what is drawn for their whole."""

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
