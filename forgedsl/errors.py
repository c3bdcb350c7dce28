"""Exceptions of ForgeDSL. Mistakes in a .forge file are diagnostics, not exceptions.

ForgeError
|-- SourceError      carries diagnostics across an API boundary
|   `-- PipelineError  the same for people: prints as the commands do (load, compile_loss)
|-- LaunchError      the environment cannot satisfy the plan (exit 4)
|-- RunError         a run failed after launch (exit 5), with the service that failed
|   |-- StartError   a process of a service died while it started (exit 5)
|   `-- GuardError   stopped by a guard: NaN, starvation (exit 6)
|-- CannotWriteError a file that was asked for cannot be written (exit 2)
`-- InternalError    a bug of ours (exit 70)
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.source import SourceFile

REFUSED = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
})  # fmt: skip
"""OS errors that the machine causes (such as a full disk), never a bug of ForgeDSL"""


class ForgeError(Exception):
    """Base of all errors raised by ForgeDSL."""


class SourceError(ForgeError):
    """A .forge text has errors; `diagnostics` holds them."""

    def __init__(
        self, diagnostics: tuple[Diagnostic, ...], sources: Mapping[str, SourceFile] | None = None
    ) -> None:
        self.diagnostics = diagnostics
        self.sources: Mapping[str, SourceFile] = sources or {}
        shown = [d for d in diagnostics if d.severity is Severity.ERROR] or diagnostics
        super().__init__("; ".join(_one_line(d, sources or {}) for d in shown))


class PipelineError(SourceError):
    """A file, an override or an argument is wrong; printed as the commands print it.

    `diagnostics` holds what was found; it is empty where the text says it all, such as a run
    folder that is in use.
    """

    def __init__(
        self,
        text: str,
        diagnostics: tuple[Diagnostic, ...] = (),
        sources: Mapping[str, SourceFile] | None = None,
    ) -> None:
        super().__init__(diagnostics, sources)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def _render_traceback_(self, *_: object) -> list[str]:
        """Show the diagnostics alone in a notebook: no frame of ours explains them better."""
        return [f"{type(self).__name__}: {self.text}"]


def _one_line(found: Diagnostic, sources: Mapping[str, SourceFile]) -> str:
    """Return a diagnostic as one line:
    `sums.forge:4:7: F101: undefined name `c`; did you mean `a`?`."""
    text = "; ".join(filter(None, (f"{found.code}: {found.message}", found.help)))
    source = sources.get(found.span.file)
    if source is None or found.span.end == 0:
        return text
    line, column = source.position(found.span.start)
    return f"{found.span.file}:{line}:{column}: {text}"


class LaunchError(ForgeError):
    """The environment cannot satisfy the plan."""


class UserCodeError(LaunchError):
    """A reward, an agent or an environment would fail for every row, as a call before the first
    step has shown."""


class RunError(ForgeError):
    """A run failed after launch. `service` is the culprit where there is one, `origin` where it was
    declared (file:line:column)."""

    def __init__(
        self, message: str, *, origin: str = "", remedy: str = "", service: str = ""
    ) -> None:
        self.service = service
        self.origin = origin
        self.remedy = remedy
        super().__init__(message)


class StartError(RunError):
    """A process of a service died while it started, without an error of its own."""


class GuardError(RunError):
    """A guard stopped the run (non-finite loss, starvation)."""


class CannotWriteError(ForgeError):
    """A file that was asked for cannot be written (exit 2)."""


class InternalError(ForgeError):
    """A bug in ForgeDSL."""


def cannot_write(error: OSError) -> str:
    """Return `cannot write PATH: No space left on device`, or "" if the error may be a bug of
    ours."""
    known = error.filename and error.errno in REFUSED
    return f"cannot write {error.filename}: {error.strerror}" if known else ""


def expect(given: object, kinds: Any, said: str) -> None:
    """Raise TypeError unless an argument of the Python API is an instance of `kinds`."""
    if not isinstance(given, kinds):
        raise TypeError(f"{said}, not {given!r}")


def write_text(path: Path, text: str) -> None:
    """Write a file that the user has named; its folder is made if it does not exist.

    Raises:
        CannotWriteError: it could not be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turn an OSError of the body into a CannotWriteError that names the file.

    Raises:
        CannotWriteError: the body could not write it.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or path
        raise CannotWriteError(f"cannot write {place}: {error.strerror}") from error
