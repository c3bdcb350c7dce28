"""A run seen from Python: while it runs (`Running`), and what it left (`RunResult`).

forgec run, in a process of its own --> RUN/{metrics.jsonl, events.jsonl, logs/python.log}
    Running: rows so far, stop, wait            RunResult: metrics, verdict, resume, export
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forgedsl import api
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.run_lock import claim, handed_over, is_held
from forgedsl.errors import (
    CannotWriteError,
    GuardError,
    LaunchError,
    RunError,
    expect,
    writing,
)
from forgedsl.python.arguments import as_override
from forgedsl.python.pages import PipelineError, preformatted
from forgedsl.python.speaking import all_speak_python, speaks_python
from forgedsl.runs.data import load_run, status_of
from forgedsl.surface import VARIABLE

if TYPE_CHECKING:
    import pandas

    from forgedsl.runs.data import RunData
    from forgedsl.runs.verdict import Finding

LOG = "logs/python.log"
BEGUN = ": run folder "
"""what `forgec run` prints when nothing can refuse the run any more"""
REFUSAL = re.compile(r"^forgec(?: run)?: ", re.M)
"""how the last words of `forgec run` begin, which an exception repeats"""
LOOK_SECONDS = 0.1
"""seconds between two polls of a running run"""
STOPPED = (130, 75)
"""exit codes of a run that saved a checkpoint because it was asked to end"""
LONGEST = 2000
"""characters of the log that an exception quotes"""
FRAMES = ("metrics", "samples", "evals")
STYLE = (
    "<style>.forge-run svg{max-width:520px;font:11px sans-serif}.forge-run text{fill:currentColor}"
    ".forge-run .ax{text-anchor:end}.forge-run .ax.mid{text-anchor:middle}"
    ".forge-run .grid{stroke:#8884}.forge-run .cursor{display:none}"
    ".forge-run .line,.forge-run .raw{fill:none;stroke:#3b82f6;stroke-width:1.5}"
    ".forge-run .raw{opacity:.3}.forge-run .line:not(.c1){stroke:#d9671b}"
    ".forge-run .band{fill:#3b82f6;opacity:.15}.forge-run circle{fill:#d9671b}</style>"
)


class Source(Protocol):
    """Interface of the pipeline that a run was made of."""

    path: Path
    profile: str
    overrides: tuple[str, ...]
    set_files: tuple[Path, ...]


def begin(folder: Path, words: tuple[str, ...], pipeline: Source | None) -> Running:
    """Start `forgec run WORDS` in a session of its own: an interrupt of this process's terminal
    or notebook does not reach it, and `stop` does. The run takes over the lock of the folder, which
    this process has claimed."""
    log = folder / LOG
    process: subprocess.Popen[bytes] | None = None
    try:
        with handed_over(folder) as lock:
            with writing(log):
                log.parent.mkdir(exist_ok=True)
                file = log.open("wb")
            with file, _interrupts_wait():
                with suppress(BlockingIOError):  # a process of the previous run still holds it
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the run inherits it
                process = subprocess.Popen(
                    [sys.executable, "-m", "forgedsl", "run", *words],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                    start_new_session=True, pass_fds=lock.files,
                    env={**_plain_environment(), VARIABLE: "python", **lock.variables},
                )  # fmt: skip
            lock.to(process.pid)
        return Running(folder, process, pipeline)
    except KeyboardInterrupt:  # nobody would hold the run that has just been started
        if process is not None:
            process.kill()
            process.wait()
        raise


def _plain_environment() -> dict[str, str]:
    """The environment without the wish for colours of a terminal, which kernels of Jupyter set: a
    log has none."""
    return {n: v for n, v in os.environ.items() if n not in ("FORCE_COLOR", "CLICOLOR_FORCE")}


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """A process that the body starts gets no SIGINT until it asks for it (launch.py): while it
    imports, an interrupt would end it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended(code: int) -> str:
    """How a run ended that has not said why."""
    if code >= 0:
        return f"the run ended with exit code {code} and gave no reason"
    known = code in {-each for each in signal.Signals}
    return f"the run was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


@all_speak_python
class Running:
    """A run in the background."""

    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], pipeline: Source | None
    ) -> None:
        self.folder = folder
        self._process = process
        self._pipeline = pipeline
        self._began = time.time()

    @property
    def running(self) -> bool:
        """True until its process has ended."""
        return self._process.poll() is None

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of the steps so far."""
        from forgedsl.runs.data import jsonl

        return list(jsonl(self.folder / "metrics.jsonl", []))

    def log(self) -> str:
        """Return the output of `forgec run` so far: progress, notes, and why it ended."""
        return (self.folder / LOG).read_text("utf-8", errors="replace")

    def stop(self) -> RunResult:
        """Let the run save a checkpoint and end; wait for it."""
        if self.running:
            self._process.send_signal(signal.SIGINT)
        return self.result()

    def result(self, timeout: float | None = None) -> RunResult:
        """Wait for the end, at most `timeout` seconds.

        Raises:
            TimeoutError: it is still running, and goes on.
            PipelineError, LaunchError, RunError, GuardError: it could not start, or it failed.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.folder} is still running after {timeout:g} s") from error
        if code != 0 and code not in STOPPED:
            raise self._failure(code)
        return RunResult(self.folder, self._pipeline)

    def follow(self, *, quiet: bool = False) -> RunResult:
        """Wait for the end and show the progress meanwhile. An interrupt lets the run save
        and end; a second interrupt ends it at once. Why a run cannot begin is raised, not shown."""
        text, begun = "", False
        with (self.folder / LOG).open("r", encoding="utf-8", errors="replace") as log:
            while True:
                running = self.running
                try:
                    text += log.read()
                    begun = begun or BEGUN in text
                    if begun and text and not quiet:
                        sys.stderr.write(text)
                        sys.stderr.flush()
                    text = "" if begun else text
                    if not running:
                        return self.result()
                    time.sleep(LOOK_SECONDS)
                except KeyboardInterrupt:
                    if not running:
                        raise
                    self._process.send_signal(signal.SIGINT)

    def _failure(self, code: int) -> Exception:
        """The exception for an exit code, with what the run said at its end."""
        log = self.log().strip()
        said = re.split(REFUSAL, log)[-1] if code == 2 else re.sub(REFUSAL, "", log)
        said = said[-LONGEST:]
        if code in (1, 2):
            return PipelineError(said)
        end = load_run(self.folder).outcome
        if end.get("time", 0.0) < self._began:  # the end of an earlier session
            end = {}
        why = end.get("message") or f"{_ended(code)}; the end of its log:\n{said}"
        text = f"{why}\n  run folder: {self.folder}"
        if code == 4:
            return LaunchError(text)
        kind = GuardError if code == 6 else RunError
        where = {name: str(end.get(name) or "") for name in ("origin", "remedy", "service")}
        return kind(text, **where)

    def __repr__(self) -> str:
        rows = self.rows()
        state = "running" if self.running else "ended"
        return f"<Running {self.folder}: {state}, step {rows[-1]['step'] if rows else 0}>"

    def _repr_html_(self) -> str:
        tail = "\n".join(self.log().splitlines()[-8:])
        return f"<b>{escape(repr(self)[1:-1])}</b>{preformatted(tail)}"


@all_speak_python
class RunResult:
    """A run folder: what was measured, how it went, how to go on."""

    def __init__(self, folder: Path, pipeline: Source | None = None) -> None:
        self.folder = folder
        self._pipeline = pipeline
        self.data: RunData = load_run(folder)

    @property
    def status(self) -> str:
        """done, interrupted, failed, stopped by a guard; running or killed without an end."""
        return status_of(self.data)

    @property
    def steps(self) -> int:
        """The last step that was done."""
        return int(self.data.rows[-1]["step"]) if self.data.rows else 0

    @property
    def verdict(self) -> tuple[Finding, ...]:
        """Did it learn, why not, what is slow: the findings of the report."""
        from forgedsl.runs.verdict import verdict

        return tuple(verdict(self.data))

    @property
    def evals(self) -> dict[str, list[tuple[int, float]]]:
        """(step, value) of every eval, by name."""
        from forgedsl.runs.verdict import evals

        return {
            name: [(int(step), value) for step, value in points]
            for name, points in evals(self.data).items()
        }

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per step."""
        return list(self.data.rows)

    def frame(self, what: str = "metrics") -> pandas.DataFrame:
        """The `metrics`, `samples` or `evals` as a pandas frame.

        Raises:
            ImportError: pandas is not installed.
        """
        if what not in FRAMES:
            raise PipelineError(f"there is no frame {what!r}; it is one of {', '.join(FRAMES)}")
        try:
            import pandas
        except ModuleNotFoundError as error:
            install = f"{sys.executable} -m pip install pandas"
            raise ImportError(f"`frame` needs pandas; install it with:\n  {install}") from error
        if what == "evals":
            rows = [
                {"eval": name, "step": step, "value": value}
                for name, points in self.evals.items()
                for step, value in points
            ]
            return pandas.DataFrame(rows, columns=["eval", "step", "value"])
        return pandas.DataFrame(list(self.data.rows if what == "metrics" else self.data.samples))

    def resume(
        self,
        *overrides: str,
        allow: str = "",
        pipeline: Source | None = None,
        quiet: bool = False,
        **params: object,
    ) -> RunResult:
        """Continue the run from its last checkpoint, with the overrides that a resume may have;
        `params` are parameters of the file by keyword, as for `load`. `allow` is "numerics", "data"
        or "placement", as `--allow` of `forgec run`. `pipeline` is the file, if it has changed
        since, or if `open_run` was called without it.

        Example:
            longer = result.resume("schedule.steps=400")
            result.resume("trainer.optimizer.lr=1e-5", allow="numerics")

        Raises:
            PipelineError: the run cannot go on, or not with these changes.
        """
        expect(allow, str, '`allow` must be "numerics", "data" or "placement"')
        words = ["--resume", str(self.folder), *(["--allow", allow] if allow else [])]
        mine = pipeline or self._pipeline
        overrides = (*overrides, *map(as_override, params.items()))
        if overrides or pipeline is not None:
            if mine is None:
                raise PipelineError(
                    "overrides need the .forge file: resume(..., pipeline=forgedsl.load(FILE))"
                )
            api.listed(overrides, str, 'resume("schedule.steps=400")')
            words += [str(mine.path), "--profile", mine.profile]
            for path in mine.set_files:
                words += ["--set-file", str(path)]
            for text in (*mine.overrides, *overrides):
                words += ["--set", text]
        if is_held(self.folder):
            raise PipelineError(f"{self.folder} is in use by this process: close its Session first")
        try:
            claim(self.folder)
        except UsageError as error:
            raise PipelineError(str(error)) from error
        return begin(self.folder, tuple(words), mine).follow(quiet=quiet)

    def export(
        self,
        to: str | Path | None = None,
        *,
        step: int | None = None,
        best: str | None = None,
        adapter: bool = False,
    ) -> str:
        """Write the weights in Hugging Face format; return the folder, or the address on the hub
        for `to="hf(me/name)"`. `step` or `best` (an eval) choose the checkpoint. `adapter` writes
        the LoRA adapter alone, in the layout of PEFT."""
        from forgedsl.cli.export import export_run
        from forgedsl.cli.overrides import UsageError

        try:
            where = None if to is None else str(to)
            return export_run(self.folder, step=step, best=best, to=where, adapter=adapter)
        except (UsageError, CannotWriteError) as error:
            raise PipelineError(str(error)) from error

    def __repr__(self) -> str:
        from forgedsl.runs.summary import summary

        codes = {"done": 0, "interrupted": 130, "running": None, "killed": None}
        data = load_run(self.folder)
        return summary(self.folder, codes.get(status_of(data), 5), data)

    def _repr_html_(self) -> str:
        from forgedsl.runs.charts import SMALL
        from forgedsl.runs.page import hero

        drawn = hero(self.data, SMALL)
        chart = f'{STYLE}<div class="forge-run">{drawn.svg}</div>' if drawn else ""
        return chart + preformatted(repr(self))


@speaks_python
def open_run(folder: str | Path, pipeline: Source | None = None) -> RunResult:
    """Open the folder of a run, finished or not. With its `pipeline`, `resume` takes overrides.

    Raises:
        PipelineError: the folder holds no run.
    """
    folder = Path(folder)
    if not (folder / "job.json").is_file():
        from forgedsl.runs.checkpoints import no_run

        raise PipelineError(no_run(folder))
    return RunResult(folder, pipeline)
