"""`forgec` in this process: what a command line prints, and its exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True, kw_only=True)
class Result:
    """`output` is both streams as a terminal would show them."""

    exit_code: int
    stdout: str
    stderr: str
    output: str
    exception: BaseException | None = None


class _Tee(io.StringIO):
    """A stream that writes to another one too."""

    def __init__(self, both: io.StringIO) -> None:
        super().__init__()
        self._both = both

    def write(self, text: str) -> int:
        self._both.write(text)
        return super().write(text)


class CliRunner:
    """Calls `app` with words; an exception that is no exit has the code 1, as a crash has."""

    def invoke(
        self,
        app: Callable[[Sequence[str]], int],
        words: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        input: str = "",
    ) -> Result:
        both = io.StringIO()
        out, err = _Tee(both), _Tee(both)
        error: BaseException | None = None
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            patch.object(sys, "stdin", io.StringIO(input)),
            patch.dict(os.environ, env or {}),
        ):
            try:
                code: Any = app([str(word) for word in words])
            except SystemExit as end:
                error, code = end, end.code
            except Exception as raised:
                error, code = raised, 1
        return Result(
            exit_code=code if isinstance(code, int) else int(code is not None),
            stdout=out.getvalue(), stderr=err.getvalue(), output=both.getvalue(), exception=error,
        )  # fmt: skip
