"""Generated losses at run time: torch only, usable in anybody's training loop."""

from __future__ import annotations

from forgedsl.runtime.losses.function import LossFunction, LossOutput, token_logprobs

__all__ = ["LossFunction", "LossOutput", "token_logprobs"]
