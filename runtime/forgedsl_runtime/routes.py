"""Routes: the experts that a sampler chose for each token, for a trainer to choose again.

A route is an array of expert numbers, [layers, active], for one token. Tokens without one (the last
token of a completion was never an input; a sequence may not come from a sampler) hold
`missing_route`, and the trainer's router chooses for them. Method: rollout routing replay (arXiv
2510.11370).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Routes: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""uint8 or int16 [tokens, layers, active]"""


def route_dtype(experts: int) -> np.dtype[Any]:
    """Return the narrowest dtype that holds the number of each expert, and `missing_route`."""
    return np.dtype(np.uint8 if experts < 256 else np.int16)


def missing_route(dtype: np.dtype[Any]) -> int:
    """Return the number that stands for a token without a route."""
    return int(np.iinfo(dtype).max)


def pad_routes(routes: Routes, tokens: int) -> Routes:
    """Pad routes with `missing_route` to the length `tokens`."""
    lacking = tokens - len(routes)
    if lacking <= 0:
        return routes[:tokens]
    none = np.full((lacking, *routes.shape[1:]), missing_route(routes.dtype), routes.dtype)
    return np.concatenate([routes, none])


def join_routes(rows: Sequence[tuple[Routes | None, int]]) -> Routes | None:
    """Return the routes of a sequence of rows, each (routes, number of tokens); None if no row has
    any."""
    like = next((routes for routes, _ in rows if routes is not None), None)
    if like is None:
        return None
    return np.concatenate([pad_routes(like[:0] if r is None else r, tokens) for r, tokens in rows])
