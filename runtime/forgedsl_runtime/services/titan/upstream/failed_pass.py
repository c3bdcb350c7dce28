"""Removes what a pass that failed leaves in FSDP.

    pass --error--> gathered weights, gradients not reduced, marks of a pass in progress --> none

With these marks FSDP would not end the next backward pass, so the embedding would get no gradient;
it would add the gradients of the failed pass to those of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def forgotten_if_failed(model: nn.Module) -> Iterator[None]:
    """Forget the pass of the body if it fails. Gradients that FSDP has reduced stay."""
    try:
        yield
    except Exception:
        _forget(model)
        raise


def drop_unreduced(group: Any) -> None:
    """Drop the gradients of an FSDP group that were not reduced."""
    for weight in group.fsdp_params:
        weight.unsharded_accumulated_grad = None
        if hasattr(weight, "_unsharded_param"):
            weight._unsharded_param.grad = None


def _forget(model: nn.Module) -> None:
    from torch.distributed.fsdp import FSDPModule

    parts: list[Any] = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        state = part._get_fsdp_state()
        for group in state._fsdp_param_groups:
            drop_unreduced(group)
        if state._is_root:  # known from the first forward pass on
            part.reset_iter_state()
