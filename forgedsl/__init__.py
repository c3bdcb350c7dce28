"""ForgeDSL: a declarative language for reinforcement-learning post-training of language models.

Importing this package loads nothing heavy: `load`, `open_run` and `compile_loss` are imported on
first use, and `compile_loss` and `forgedsl.compat` load torch.
"""

from __future__ import annotations

import os

from forgedsl.version import VERSION as __version__

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "grammar")):
    # a checkout without symbolic links, as on Windows: grammar and pipelines are siblings
    __path__.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

HOMES = {
    "Agent": "forgedsl.agent",
    "Pipeline": "forgedsl.python.pipeline",
    "PipelineError": "forgedsl.python.pages",
    "compare": "forgedsl.python.compared",
    "compile_loss": "forgedsl_runtime.losses",
    "load": "forgedsl.python.pipeline",
    "open_run": "forgedsl.python.results",
}
"""what is imported on first use, and from where"""

__all__ = [
    "Agent", "Pipeline", "PipelineError", "__version__", "compare", "compile_loss", "load",
    "open_run",
]  # fmt: skip

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from forgedsl.agent import Agent
    from forgedsl.python.compared import compare
    from forgedsl.python.pages import PipelineError
    from forgedsl.python.pipeline import Pipeline, load
    from forgedsl.python.results import open_run
    from forgedsl_runtime.losses import compile_loss


def __getattr__(name: str) -> Any:
    if name in HOMES:
        from importlib import import_module

        from forgedsl.python.interrupts import interrupts_wait

        try:
            with interrupts_wait():
                return getattr(import_module(HOMES[name]), name)
        except ModuleNotFoundError as error:
            needed = error.name or ""
            if needed.startswith("forgedsl"):
                raise
            from forgedsl.cli.main import missing

            raise ModuleNotFoundError(missing(needed), name=needed) from error
    raise AttributeError(f"module 'forgedsl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
