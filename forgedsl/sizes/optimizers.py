"""Memory of optimizers per weight.

kind, precision, parameters -> bytes of moments, and of a checkpoint
"""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.sizes.params import PRECISIONS, layer_matrices, num_params, over_layers


def moment_bytes(kind: str, precision: str, *, momentum: float, params: int, matrices: int) -> int:
    """Return the bytes of an optimizer's state for `params` weights, of which `matrices` are in
    matrices of layers."""
    one = PRECISIONS[precision][1] // 2
    if kind == "sgd":
        return one * params if momentum else 0
    return one * (2 * params - (matrices if kind == "muon" else 0))


def checkpoint_bytes(
    dims: Dims, kind: str, precision: str, *, momentum: float, adapters: int
) -> int:
    """Return the bytes of weights and moments in a checkpoint. With `adapters`, only these have
    moments."""
    params = num_params(dims)
    matrices = adapters or over_layers(dims, layer_matrices)
    moments = moment_bytes(kind, precision, momentum=momentum, params=adapters or params,
                           matrices=matrices)  # fmt: skip
    return PRECISIONS[precision][0] * (params + adapters) + moments
