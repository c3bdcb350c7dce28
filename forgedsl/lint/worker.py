"""Views of a text that another process checks, as an editor has them checked.

Task: text, configuration, names of views  --engine.check_views-->  Checked: findings by view
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint.config import Config
from forgedsl.records import dataclass
from forgedsl.source import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Views to check. `texts` are unsaved texts by real path."""

    source: SourceFile
    folder: Path | None
    config: Config
    texts: Mapping[str, str]
    views: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Findings by view, and the texts that they refer to, by name."""

    findings: dict[str, tuple[Diagnostic, ...]]
    texts: dict[str, str]


class Elsewhere(Protocol):
    """What checks views at the same time as this process."""

    def start(self, task: Task) -> Callable[[], Checked | None] | None:
        """Begin a task; return the function that waits for its result. Both return None if the
        task cannot be done."""
