"""`forgec`: the command line. Commands (commands.py) are imported when they are called, so that
`forgec --help` and `forgec lint` load neither torch nor pydantic or rich.

Exit codes: 0 ok; 1 diagnostics at error level; 2 bad usage or I/O; 3 plan differs; 4 the
environment cannot satisfy the plan; 5 run failed; 6 stopped by a guard; 70 internal error;
130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from forgedsl.cli.app import app

EXIT_FAILED = 5
MONARCH = "forgedsl_runtime.upstream.monarch"
PACKAGE = r"/(?=forgedsl(?:_runtime)?/)"
"""where a path in one of the two packages begins"""


def main(*, whole: bool = False) -> None:
    """Run a command and exit with its code. `whole`: the process runs only this command, so it may
    end without the shutdown of the interpreter."""
    if sys.stderr is None:  # stderr is closed; `print(file=None)` would write to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        print(
            "forgec: standard output is closed; redirect it to a file or /dev/null", file=sys.stderr
        )
        sys.exit(2)
    if whole and sys.argv[1:2] == ["lint"]:
        gc.disable()  # a check makes few reference cycles, and the search for them takes 10 %
    with_client = _has_client()
    code = _ended(_call)
    code = _ended(_flush) or code
    started_client = _has_client() and not with_client  # this command owns the process
    if whole and not started_client and _is_plain():
        # nothing is left to do, so the interpreter need not free every object: 2 % of `forgec lint`
        _end(code)
    import signal

    # all output is written: Ctrl-C has nothing left to interrupt
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    if code == EXIT_FAILED and MONARCH in sys.modules:
        sys.stderr.flush()
        os._exit(code)  # after one of its processes died, Monarch's client may abort at exit
    if started_client:
        _end(code)  # rarely, its threads abort while the interpreter shuts down
    gc.freeze()  # no search for reference cycles at exit
    sys.exit(code)


def _end(code: int) -> NoReturn:
    """End the process without the interpreter's shutdown."""
    sys.stderr.flush()
    atexit._run_exitfuncs()
    _ended(_flush)
    os._exit(code)


def _is_plain() -> bool:
    """True if no thread can run and nothing measures the process."""
    return "threading" not in sys.modules and sys.getprofile() is None


def _has_client() -> bool:
    """True if Monarch's client was started in this process."""
    # None if importing the module failed
    begin = getattr(sys.modules.get(MONARCH), "this_host", None)
    return begin is not None and bool(begin.cache_info().currsize)


def _call() -> None:
    if "_FORGEC_COMPLETE" in os.environ:
        from forgedsl.cli import completion

        sys.exit(completion.main(os.environ))
    # words for `--help` and `--version`, as in other tools
    if sys.argv[1:2] in (["help"], ["version"]):
        word, rest = sys.argv[1], sys.argv[2:]
        sys.argv[1:] = [*rest[:1], f"--{word}"] if word == "help" else ["--version"]
    sys.exit(app(sys.argv[1:]))


def _flush() -> None:
    """Flush stdout now: an error at Python's exit could not be reported."""
    sys.stdout.flush()


def _ended(work: Callable[[], None]) -> int:
    """Call `work`; return the exit code."""
    try:
        work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (KeyboardInterrupt, BrokenPipeError) as error:
        from forgedsl.cli.overrides import stopped

        return stopped(error)
    except Exception as error:
        return _exit_code(error)
    return 0


def _exit_code(error: Exception) -> int:
    """Print what an exception means and return its exit code."""
    from forgedsl.errors import (
        REFUSED,
        CannotWriteError,
        GuardError,
        LaunchError,
        RunError,
        SourceError,
        cannot_write,
    )
    from forgedsl.extensions import ExtensionError

    if isinstance(error, SourceError):
        for diagnostic in error.diagnostics:
            print(f"error[{diagnostic.code}]: {diagnostic.message}", file=sys.stderr)
        return 1
    if isinstance(error, LaunchError | RunError):
        print(f"forgec: {error}", file=sys.stderr)
        if isinstance(error, LaunchError):
            return 4
        return 6 if isinstance(error, GuardError) else 5
    if isinstance(error, CannotWriteError | ExtensionError):
        print(f"forgec: {error}", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.errno in REFUSED:
        from forgedsl.cli.overrides import drop_output

        output = f"cannot write standard output: {error.strerror}"
        print(f"forgec: {cannot_write(error) or output}", file=sys.stderr)
        drop_output()
        return 2
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("forgedsl"):
        print(f"forgec: {missing(error.name or '')}", file=sys.stderr)
        return 4
    return _crash(error)


def missing(name: str) -> str:
    """Return the message for a missing package that a run needs."""
    from pathlib import Path

    from forgedsl.plan.gpus import detect_gpus

    lock = Path(__file__).parents[1] / "requirements" / f"{'gpu' if detect_gpus() else 'cpu'}.txt"
    return (
        f"this needs the package `{name}`, which is not installed here; to install everything "
        f"that runs need, in tested versions:\n  {sys.executable} -m pip install --no-deps -r "
        f"{lock}"
    )


def _crash(error: Exception) -> int:
    """Report an internal error: write the traceback to a file and ask for a bug report."""
    import re
    import tempfile
    import traceback

    from forgedsl.version import VERSION

    with tempfile.NamedTemporaryFile(
        "w", prefix="forgec-crash-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"forgec {VERSION}, Python {sys.version}\n{' '.join(sys.argv)}\n\n")
        file.write("".join(traceback.format_exception(error)))
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{re.split(PACKAGE, last.filename)[-1]}:{last.lineno}"
    print(
        f"forgec: internal error in {place}: {type(error).__name__}: {error}\n"
        f"  this is a bug in forgec, not in your file; the details are in {file.name}",
        file=sys.stderr,
    )
    return 70


if __name__ == "__main__":
    main(whole=True)
