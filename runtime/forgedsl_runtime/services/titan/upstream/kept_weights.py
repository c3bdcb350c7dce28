"""Keeps the weights that FSDP gathered until the last microbatch of an update.

FSDP gathers the weights of a layer, in the compute dtype, before each pass of each microbatch, and
reduces gradients after it. With this, both happen once an update:

    microbatch      1        2 ...    last
    weights         gather            ...       reshard
    gradients       add      add      add       reduce

Gradients wait for the last microbatch only in groups of weights that are whole on each rank. There
they need no more memory than reduced ones. In all other groups they are reduced each time. If a
group has no other rank, there is nothing to reduce: its sums become the gradients, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from forgedsl_runtime.services.titan.upstream.failed_pass import drop_unreduced


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
        for group in filter(_is_whole, self._groups):
            for weight in group.fsdp_params:
                keep = weight.to_accumulated_grad_if_needed
                weight.to_accumulated_grad_if_needed = partial(_if_used, weight, keep)
                if group.device.type == "cuda":
                    weight.accumulate_unsharded_grad_if_needed = partial(_accumulate, weight)

    def begin(self, *, last: bool) -> None:
        """Prepare for a microbatch; `last`: it is the last one of an update."""
        for group in self._groups:
            group.reshard_after_backward = last
            if _is_whole(group):
                group.reduce_grads = group.all_reduce_grads = last and not _is_alone(group)
            if _is_alone(group):
                for weight in group.fsdp_params:
                    _take_up(weight)

    def finish(self) -> None:
        """Make the sums of groups without other ranks the gradients of their weights. Call after
        the backward pass of the last microbatch."""
        for group in self._groups:
            if _is_alone(group):
                for weight in group.fsdp_params:
                    _hand_over(weight, group._orig_dtype)

    def release(self) -> None:
        """Free the gathered weights, and gradients that were not reduced. Call after passes without
        gradients, and if an update is given up before its last microbatch; then its gradients of
        lone ranks are lost, also those of earlier passes."""
        for group in self._groups:
            drop_unreduced(group)
        for part in self._parts:
            part.reshard()


def _is_whole(group: Any) -> bool:
    """True if each rank has the whole weights of a group."""
    return bool(getattr(group.mesh_info, "shard_mesh_size", 1) == 1)


def _is_alone(group: Any) -> bool:
    """True if no other rank has weights of a group, and its gradients stay on this device as they
    are."""
    replicas = getattr(group.mesh_info, "replicate_mesh_size", 1)
    stay = not any(weight.offload_to_cpu for weight in group.fsdp_params)
    return _is_whole(group) and replicas == 1 and stay and group.gradient_divide_factor in (None, 1)


def _take_up(weight: Any) -> None:
    """Let the gradient of earlier passes of an update (of another loss) be the sum to which this
    pass adds, so that there are not two of them."""
    held = weight.sharded_param.grad
    if held is None or weight.is_dtensor or weight.unsharded_accumulated_grad is not None:
        return
    local = held._local_tensor
    weight.unsharded_accumulated_grad = local.to(weight.reduce_dtype or local.dtype)
    weight.sharded_param.grad = None


def _if_used(weight: Any, call: Callable[[], None]) -> None:
    """Call FSDP's method for a weight that a forward pass has used; it fails for others."""
    if hasattr(weight, "_unsharded_param"):
        call()


def _hand_over(weight: Any, dtype: Any) -> None:
    """Make the sum of a weight's gradients its gradient, in the dtype of the stored weight."""
    if weight.unsharded_accumulated_grad is not None:
        gradient = weight.unsharded_accumulated_grad_data
    elif hasattr(weight, "_unsharded_param") and weight._unsharded_param.grad is not None:
        gradient = weight.unsharded_grad_data
    else:
        return
    weight.unsharded_accumulated_grad = None
    if hasattr(weight, "_unsharded_param"):
        weight._unsharded_param.grad = None
    gradient = gradient.to(dtype).contiguous()
    held = weight.sharded_param.grad
    if held is None:
        weight.sharded_param.grad = weight.to_sharded_dtensor(gradient)
    else:
        held._local_tensor += gradient


def _accumulate(weight: Any) -> None:
    """FSDP's method of the same purpose, with a quicker kernel."""
    from forgedsl_runtime.services.titan.upstream.gradient_sums import add_gradient

    if weight.unsharded_accumulated_grad is None:
        return
    gradient = weight.unsharded_param.grad
    if gradient is not None:
        add_gradient(weight.unsharded_accumulated_grad, gradient)
        weight.unsharded_param.grad = None
