"""Keeps the weights that FSDP gathered until the last microbatch of an update.

FSDP gathers the weights of a layer, in the compute dtype, before each pass of each microbatch, and
reduces gradients after it. With this, both happen once an update:

    microbatch      1        2 ...    last
    weights         gather            ...       reshard
    gradients       add      add      add       reduce

Gradients wait for the last microbatch only in groups of weights that are whole on each rank. There
they need no more memory than reduced ones. In all other groups they are reduced each time.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class KeptWeights:
    """Controls when the layers of a model, which FSDP wraps, are resharded and reduced."""

    def __init__(self, model: nn.Module) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._parts: list[Any] = [part for part in model.modules() if isinstance(part, FSDPModule)]
        self._groups: list[Any] = [
            group for part in self._parts for group in part._get_fsdp_state()._fsdp_param_groups
        ]
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)

    def begin(self, *, last: bool) -> None:
        """Prepare for a microbatch; `last`: it is the last one of an update."""
        for group in self._groups:
            group.reshard_after_backward = last
            if getattr(group.mesh_info, "shard_mesh_size", 1) == 1:
                group.reduce_grads = group.all_reduce_grads = last

    def release(self) -> None:
        """Free the gathered weights, and gradients that were not reduced. Call after passes without
        gradients, and if an update is given up before its last microbatch."""
        for group in self._groups:
            for weight in group.fsdp_params:
                weight.unsharded_accumulated_grad = None
                if hasattr(weight, "_unsharded_param"):
                    weight._unsharded_param.grad = None
        for part in self._parts:
            part.reshard()
