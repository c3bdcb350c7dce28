"""Memory of optimizers per weight.

kind, precision, parameters -> bytes of moments, and of a checkpoint
"""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.sizes.params import PRECISIONS, layer_matrices, num_params


def moment_bytes(kind: str, precision: str, *, momentum: float, params: int, matrices: int) -> int:
    """Bytes of what an optimizer keeps of `params` weights besides them, `matrices` of which are in
    matrices of the layers."""
    one = PRECISIONS[precision][1] // 2
    if kind == "sgd":
        return one * params if momentum else 0
    return one * (2 * params - (matrices if kind == "muon" else 0))


def checkpoint_bytes(
    dims: Dims, kind: str, precision: str, *, momentum: float, adapters: int
) -> int:
    """Bytes of weights and moments as a trainer keeps them, `adapters` of which are learned, or all
    where there are none."""
    params = num_params(dims)
    matrices = adapters or dims.layers * layer_matrices(dims)
    moments = moment_bytes(kind, precision, momentum=momentum, params=adapters or params,
                           matrices=matrices)  # fmt: skip
    return PRECISIONS[precision][0] * (params + adapters) + moments
