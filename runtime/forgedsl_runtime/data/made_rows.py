"""Rows that a package makes, in a process of its own: those of `reasoning_gym(...)`.

    MadeRows[7] --{"task", "config", "number"}--> main --{"row"}--> row
                                              the package is imported here, with a fixed hash seed

One maker process serves all such sources of a process. It is separate because the import takes
seconds and 100 MiB, and because rows of some tasks depend on the hash seed, which cannot be changed
in a running process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job

CODE = "from forgedsl_runtime.data.made_rows import main; main()"
HASH_SEED = "0"
"""see forgedsl.reasoning_gym, which is not imported here"""


class MadeRows(Sequence[Any]):
    """The rows of a source.

    Raises:
        LaunchError: the package is not installed, or refuses the task or its configuration.
    """

    def __init__(self, spec: job.ReasoningGymSource) -> None:
        self._task = spec.task
        self._config = {**spec.options, "seed": spec.seed, "size": spec.size}
        self._size = spec.size
        self[0]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        return _maker().row({"task": self._task, "config": self._config, "number": index})


@cache
def _maker() -> _Maker:
    return _Maker()


class _Maker:
    """The process that makes rows; it is started for the first one, and again if it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def row(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return a row.

        Raises:
            LaunchError: it cannot be made.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # otherwise the next call would read this answer
                process.kill()
                raise
            if not line:
                code = process.wait()
                raise LaunchError(f"the process that makes rows ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LaunchError(answer["error"])
        found: dict[str, Any] = answer["row"]
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
                start_new_session=True,  # Ctrl-C does not reach it; it ends with its input
            )
        return self._process


def main() -> None:
    """Make rows until the input is closed. What the package prints goes to the error output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        from forgedsl.reasoning_gym import Problems
    except ImportError as error:
        for _ in sys.stdin:
            print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    made: dict[str, Problems] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        key = json.dumps([asked["task"], asked["config"]])
        answer: dict[str, Any]
        try:
            if key not in made:
                made[key] = Problems(asked["task"], asked["config"])
            answer = {"row": made[key].row(asked["number"])}
        except Exception as error:  # an error of the package, about this row or this source
            answer = {"error": f"{type(error).__name__}: {error}"}
            if isinstance(error, ValueError):
                answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
