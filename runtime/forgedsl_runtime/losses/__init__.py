"""Generated losses at run time: torch only, usable in anybody's training loop.

`compile_loss` loads the front end of the compiler on first use; the trainer never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forgedsl_runtime.losses.function import LossFunction
from forgedsl_runtime.losses.logprobs import token_logprobs
from forgedsl_runtime.losses.output import LossOutput

if TYPE_CHECKING:
    from forgedsl_runtime.losses.compile import compile_loss

__all__ = ["LossFunction", "LossOutput", "compile_loss", "token_logprobs"]


def __getattr__(name: str) -> Any:
    if name == "compile_loss":
        from forgedsl_runtime.losses.compile import compile_loss

        return compile_loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
