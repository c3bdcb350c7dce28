"""A second process that checks some views of a text, while the server checks the others.

    server: Task --pickle, stdin--> this module as a process: `check_views` --stdout--> Checked

The process ends when its stdin does, so none is left when a server is killed. It keeps facts of
losses from text to text, as the server does.
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

from forgedsl.lint.elsewhere import Checked, Task

MOST_FACTS = 200
"""maximum number of loss structures whose facts are cached"""


class Helper:
    """The second process. If it ends, for any reason, the server checks all views itself."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forgedsl.ide.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = False

    def start(self, task: Task) -> Callable[[], Checked | None] | None:
        """Begin a task; return the function that waits for its result. None if there is no process;
        the function returns None if the process ended meanwhile."""
        if self._process.poll() is not None:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answers = self._process.stdout
        if self._unread:  # an error came between the task before and its result
            self._result(answers)
        try:
            pickle.dump(task, self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            return None
        self._unread = True
        return partial(self._result, answers)

    def _result(self, answers: IO[bytes]) -> Checked | None:
        self._unread = False
        try:
            found: Checked | None = pickle.load(answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            found = None
        if found is None:  # it has failed, and its stderr says why
            self.close()
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def has_cores() -> bool:
    """True if two processes can run at the same time."""
    usable = getattr(os, "sched_getaffinity", None)
    return (len(usable(0)) if usable else os.cpu_count() or 1) > 1


def main() -> None:
    """Answer tasks until stdin ends. Other output goes to stderr."""
    from forgedsl.lint.engine import check_views
    from forgedsl.lint.facts import Facts

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
