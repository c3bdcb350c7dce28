"""A second process that checks half of the profiles of a text, while the server checks the rest.

    server: Task --pickle, stdin--> this module as a process: `check_views` --stdout--> Answer

The process ends when its stdin is closed, so none is left when a server is killed. It caches facts
of losses from text to text, as the server does.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import IO

from forgedsl.lint.worker import Answer, Task


class LintWorker:
    """The second process. If it ends, for any reason, the server checks all views itself."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forgedsl.ide.lint_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = False

    def start(self, task: Task) -> Callable[[], Answer | None] | None:
        """Start a task, and return a function that waits for the answer. Both return None if the
        process has ended."""
        if self._process.poll() is not None:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._unread:  # the server had an error before it read the last answer
            self._answer(self._process.stdout)
        try:
            pickle.dump(task, self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            return None
        self._unread = True
        return partial(self._answer, self._process.stdout)

    def _answer(self, stdout: IO[bytes]) -> Answer | None:
        self._unread = False
        try:
            found: Answer | None = pickle.load(stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            found = None
        if found is None:  # its stderr, which editors show in their log, says why
            self.close()
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def has_two_cores() -> bool:
    """True if two processes can run at the same time."""
    usable = getattr(os, "sched_getaffinity", None)
    return (len(usable(0)) if usable else os.cpu_count() or 1) > 1


def main() -> None:
    """Answer tasks until stdin ends. Other output goes to stderr."""
    from forgedsl.lint.engine import check_views
    from forgedsl.lint.facts import MOST_FACTS, Facts

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    facts: dict[tuple[object, ...], Facts] = {}
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        gc.disable()
        if len(facts) > MOST_FACTS:
            facts.clear()
        pickle.dump(check_views(task, facts), answers)
        answers.flush()
        gc.enable()


if __name__ == "__main__":
    main()
