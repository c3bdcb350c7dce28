"""ForgeDSL: a declarative language for reinforcement-learning post-training of language models.

Importing this package loads nothing heavy; `forgedsl.compile_loss` and `forgedsl.compat` load
torch on first use.
"""

from __future__ import annotations

import os

from forgedsl.version import VERSION as __version__

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "runtime")):
    # a checkout without symbolic links, as on Windows: runtime, grammar and pipelines are siblings
    __path__.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

__all__ = ["__version__", "compile_loss"]

# same meaning as `typing.TYPE_CHECKING`: importing `typing` would take longer than the rest here
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from forgedsl.runtime.losses import compile_loss


def __getattr__(name: str) -> Any:
    if name == "compile_loss":
        from forgedsl.runtime.losses import compile_loss

        return compile_loss
    raise AttributeError(f"module 'forgedsl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
