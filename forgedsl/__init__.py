"""ForgeDSL: a declarative language for reinforcement-learning post-training of language models.

Importing this package loads nothing heavy: `load`, `open_run` and `compile_loss` are imported on
first use, and `compile_loss` and `forgedsl.compat` load torch.
"""

from __future__ import annotations

import os

from forgedsl.version import VERSION as __version__

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "runtime")):
    # a checkout without symbolic links, as on Windows: runtime, grammar and pipelines are siblings
    __path__.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

__all__ = ["PipelineError", "__version__", "compile_loss", "load", "open_run"]

# same meaning as `typing.TYPE_CHECKING`: importing `typing` would take longer than the rest here
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from forgedsl.python.pages import PipelineError
    from forgedsl.python.pipeline import load
    from forgedsl.python.results import open_run
    from forgedsl.runtime.losses import compile_loss


def __getattr__(name: str) -> Any:
    if name == "compile_loss":
        from forgedsl.runtime.losses import compile_loss

        return compile_loss
    if name == "load":
        from forgedsl.python.pipeline import load

        return load
    if name == "open_run":
        from forgedsl.python.results import open_run

        return open_run
    if name == "PipelineError":
        from forgedsl.python.pages import PipelineError

        return PipelineError
    raise AttributeError(f"module 'forgedsl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
