"""How far two results may be apart that add up the same numbers in another order.

Which order it is depends on the instructions of a CPU, the width of its registers, the number of
threads and the version of a library, so a tolerance that one machine gave holds there alone. Here
it follows from the dtype and from how much is added up.

Rounding takes u = eps / 2 at most, one way or the other: a sum of n numbers is off by no more than
sure * sqrt(n) * u * (the sum of their absolute values), but with probability 2 exp(-sure^2 / 2)
(Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, theorem 2.4).
Two such sums are apart by twice that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

import forgedsl

SURE = 6.0
"""once in 30 million numbers, were every rounding the largest there is"""


class Close(TypedDict):
    """As `torch.testing.assert_close` takes it."""

    rtol: float
    atol: float


def apart(dtype: torch.dtype, additions: int) -> float:
    """By which part of the sum of absolute values two sums may be apart."""
    return SURE * math.sqrt(additions) * torch.finfo(dtype).eps


def close(
    dtype: torch.dtype, additions: int, *, size: float = 1.0, condition: float = 1.0
) -> Close:
    """`additions` on the longest way from what is given to a result, of a sum of absolute values of
    `size`; `condition` is how much more than that a relative error grows by what comes behind a sum
    (an exponential of a large difference, a division by a small one)."""
    most = condition * apart(dtype, additions)
    return {"rtol": most, "atol": most * size}


def near(
    dtype: torch.dtype, additions: int, *, size: float = 1.0, condition: float = 1.0
) -> dict[str, float]:
    """The same as `pytest.approx` takes it."""
    found = close(dtype, additions, size=size, condition=condition)
    return {"rel": found["rtol"], "abs": found["atol"]}


def adam(
    dtype: torch.dtype, additions: int, *, updates: int, gradient: float, optimizer: Any
) -> Close:
    """How far weights may be apart after so many updates by Adam from gradients whose terms have a
    sum of absolute values of `gradient`. An update is lr * m / (sqrt(v) + eps): what m and v are
    off by grows by no more than 1 / eps, and a whole update is lr. Weights of at most 1 are rounded
    at each."""
    off = min(1.0, apart(dtype, additions) * gradient / optimizer.eps)
    return {"rtol": 0.0, "atol": updates * (optimizer.lr * off + torch.finfo(dtype).eps)}


def of_model(config: Mapping[str, Any], length: int, tokens: int = 1) -> int:
    """Additions on the way through a transformer of this config.json with rows of `length`, to the
    mean over `tokens`: per layer the two projections and the attention, the two products of its
    MLP, two norms; then the lm_head and its softmax."""
    hidden = config["hidden_size"]
    ffn = config.get("intermediate_size") or (
        config["moe_intermediate_size"] * config["num_experts_per_tok"]
    )
    layer = 4 * hidden + length + ffn
    found: int = config["num_hidden_layers"] * layer + 2 * hidden + config["vocab_size"] + tokens
    return found


def of_shipped(name: str, length: int, tokens: int = 1) -> int:
    """The same for a model that ships."""
    path = Path(forgedsl.__file__).parent / "pipelines/models" / name / "config.json"
    return of_model(json.loads(path.read_text("utf-8")), length, tokens)


SMALL = 128
"""additions in the batches of numeric tests: 40 rows, a vocabulary of 70, hidden states of 8"""
STEEP = 2.0**16
"""how much losses may enlarge a relative error: ratios are exponentials of sums of log-probs,
advantages differences of near numbers"""
EXACT = close(torch.float64, SMALL, condition=STEEP)
"""in float64: 1e-9, of numbers near 1, so that a term that is missing cannot hide"""
