"""Views of a text that a second process checks, and its answer.

    Task: text, configuration, names of views  --engine.check_views-->  Answer: findings by view

`forgedsl/ide/lint_worker.py` is the process of an editor.
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
class Answer:
    """Findings by view, and the texts that they refer to, by name."""

    findings: dict[str, tuple[Diagnostic, ...]]
    texts: dict[str, str]


class Worker(Protocol):
    """A second process."""

    def start(self, task: Task) -> Callable[[], Answer | None] | None:
        """Start a task, and return a function that waits for the answer. Both return None if the
        process has ended."""
