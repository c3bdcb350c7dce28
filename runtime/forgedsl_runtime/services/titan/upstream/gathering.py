"""Whole tensors out of the shards of all ranks, for generators and exports.

shards on their ranks, Stacked, InF32 --gather_tensors--> whole tensors on every rank
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.services.titan.upstream import experts
from forgedsl_runtime.services.titan.upstream.router import InF32


def gather_tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """Gather one tensor of `hf_state` from all ranks (a collective) as `dtype`."""
    (found,) = gather_tensors([value], dtype)
    return found


@torch.no_grad()
def gather_tensors(values: Sequence[Any], dtype: torch.dtype) -> list[Tensor]:
    """Gather tensors of `hf_state` from all ranks (a collective) as `dtype`, and those of routers
    (`InF32`) as float32. Shards are cast first, so that ranks send no more bytes than needed; a
    single rank has the whole tensors. Tensors whose rows are spread evenly over the same ranks are
    sent together."""
    split = [v.parts if isinstance(v, experts.Stacked) else (v,) for v in values]
    parts = [part.value if isinstance(part, InF32) else part for some in split for part in some]
    casts = [
        torch.float32 if isinstance(part, InF32) and not part.rounded else dtype
        for some in split
        for part in some
    ]
    kinds = [(_group_of_even_rows(part), cast) for part, cast in zip(parts, casts, strict=True)]
    wholes: dict[int, Tensor] = {}
    for kind in dict.fromkeys(kinds):  # the order is the same on all ranks
        here = [i for i, each in enumerate(kinds) if each == kind]
        some, (group, cast) = [parts[i] for i in here], kind
        gathered = (
            [_gather_alone(part, cast) for part in some]
            if group is None
            else _gather_rows(some, group, cast)
        )
        wholes |= zip(here, gathered, strict=True)
    in_order = iter([wholes[i] for i in range(len(parts))])
    by_value = [[next(in_order) for _ in some] for some in split]
    found = [some[0] if len(some) == 1 else torch.cat(some, 1) for some in by_value]
    return [
        whole.float() if isinstance(value, InF32) else whole
        for value, whole in zip(values, found, strict=True)
    ]


def _group_of_even_rows(value: Any) -> Any:
    """Return the group of ranks over which the rows of a floating-point tensor are spread evenly,
    if the shards are on the mesh's devices; None for all other tensors. Dimensions of a mesh with
    one rank do not count: experts have a mesh of (FSDP, experts)."""
    # The import takes half a second, and the controller does not need it.
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(value, DTensor) or not value.is_floating_point():
        return None
    mesh = value.device_mesh
    split = [dim for dim, size in enumerate(mesh.shape) if size > 1]
    if len(split) != 1 or value.to_local().device.type != mesh.device_type:
        return None
    placed = value.placements[split[0]]
    by_rows = type(placed) is Shard and placed.dim == 0 and value.shape[0] % mesh.size() == 0
    return mesh.get_group(split[0]) if by_rows else None


def _gather_rows(parts: Sequence[Any], group: Any, dtype: torch.dtype) -> list[Tensor]:
    """Gather tensors whose rows are spread evenly over the ranks of a group, in one transfer."""
    own = torch.cat([part.to_local().flatten() for part in parts]).to(dtype)
    ranks = torch.distributed.get_world_size(group)
    found = own.new_empty(ranks * len(own))
    torch.distributed.all_gather_into_tensor(found, own, group=group)
    by_rank = found.view(ranks, len(own))
    sizes = [part.numel() // ranks for part in parts]
    by_tensor = zip(parts, torch.split(by_rank, sizes, dim=1), strict=True)
    return [rows.reshape(part.shape) for part, rows in by_tensor]


def _gather_alone(value: Any, dtype: torch.dtype) -> Tensor:
    """Gather one tensor from all ranks."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor) and value.device_mesh.size() == 1:
        value = value.to_local()
    part: Tensor = value.detach()
    cast = part.to(dtype) if part.is_floating_point() else part
    if not isinstance(cast, DTensor):
        return cast
    # Offloaded tensors are gathered through the GPUs, which are faster.
    here: Any = cast.to(cast.device_mesh.device_type)
    gathered: Tensor = here.full_tensor()
    return gathered
