"""Runs the points of a sweep, each as `forgec run` in a process of its own.

    Task, ... --Sweep.run--> states in SWEEP/sweep.json, what each printed in POINT/logs/forgec.log

The state of a point is read from its run folder. The manifest may be wrong after the sweep was
killed. A point that is done stays so, one that still runs is waited for, one with a checkpoint is
resumed, and any other begins anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forgedsl.cli.run_lock import NAME as LOCK
from forgedsl.cli.sweep_points import ENDED, Entry, Manifest, Point
from forgedsl.diagnostics import counted
from forgedsl.errors import writing
from forgedsl.records import dataclass

LOG = "logs/forgec.log"
LOGS = (LOG, "logs/python.log")
"""logs that a run has locked: the first in a run of a sweep, the second in one of
`forgedsl.python`"""
PROGRESS_SECONDS = 15.0
"""interval at which a sweep says how far its runs are"""
LOOK_SECONDS = 0.1
"""interval at which the runs are looked at"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GUARD = 6
"""exit code of a run that a guard stopped"""
STOPPED = (130, 75, *(-number for number in SIGNALS))
"""exit codes, or signals, of a run that was asked to end"""
EDGES = ("run.start", "run.end")
LAST_BYTES = 1 << 16
"""end of metrics.jsonl that is read for the last step"""
TAIL = 3
"""lines of the log that are shown of a run that failed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point to run: its steps, the words behind `forgec run`, and how to write its folder."""

    point: Point
    steps: int | None
    words: tuple[str, ...]
    prepare: Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """A run that has begun. `process` is None for one that an earlier call began."""

    task: Task
    folder: Path
    process: subprocess.Popen[bytes] | None

    @property
    def has_ended(self) -> bool:
        if self.process is not None:
            return self.process.poll() is not None
        return not is_alive(self.folder)

    def send(self, number: int) -> None:
        """Send a signal to the run, if it still is there."""
        pid = self.process.pid if self.process is not None else owner(self.folder)
        if pid and not self.has_ended:
            os.kill(pid, number)


class Sweep:
    """The points of a sweep, at most `at_once` of them running. `gpus` is what each run takes."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        tasks: Sequence[Task],
        *,
        at_once: int,
        gpus: int = 0,
        visible: Sequence[str] = (),
        say: Callable[[str], None],
        command: Sequence[str] = (sys.executable, "-m", "forgedsl", "run"),
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tasks = tasks
        self.at_once = at_once
        self.gpus = gpus
        self.visible = visible
        self.command = command
        self.stopped = 0
        self._active: dict[int, Active] = {}
        self._began = self._progress_at = time.monotonic()
        self._shown_progress: dict[Path, str] = {}
        """the last progress that was printed, by run folder"""
        self._earlier: dict[Path, str] = {}
        """how far a resumed run was when it was resumed, by run folder"""
        self._say = say

    def run(self) -> int:
        """Run what is not done; the result is the signal that stopped the sweep, or 0."""
        waiting = deque(self.tasks)
        with _handled(self._stop):
            while self._active or (waiting and not self.stopped):
                for slot in range(self.at_once):
                    while waiting and slot not in self._active and not self.stopped:
                        self._next(slot, waiting.popleft())
                for slot, active in list(self._active.items()):
                    if active.has_ended:
                        del self._active[slot]
                        self._finish(active)
                self._report_steps()
                time.sleep(LOOK_SECONDS if self._active else 0)
        return self.stopped

    def _next(self, slot: int, task: Task) -> None:
        """Start a point in a slot, unless it has ended in an earlier call."""
        folder = self.folder / task.point.folder
        state, step = look(folder, task.steps)
        if state in ENDED:
            was = self._entry(task)
            self.manifest.set(task.point.folder, state=state, message="")
            late = "" if was.state in ENDED else "; the manifest did not have this yet"
            self._report(task, f"{state} in an earlier call{late}")
            return
        if state == "running":
            self._active[slot] = Active(task=task, folder=folder, process=None)
            self.manifest.set(task.point.folder, state="running")
            self._report(task, "still runs since an earlier call: the sweep waits for it")
            return
        how = {"new": "begins", "anew": "begins anew, since it has no checkpoint"}.get(
            state, f"resumes from the checkpoint of step {step}"
        )
        starts = self._entry(task).starts + 1
        # written before the start: if this process is killed, the run folder has the true state
        self.manifest.set(task.point.folder, state="running", how=how, starts=starts, message="")
        if state == "checkpoint":
            self._earlier[folder] = progress(folder, task.steps)
        self._active[slot] = self._start(slot, task, folder, resumes=state == "checkpoint")
        if self.stopped:  # a signal came after the slot was found free
            self._active[slot].send(self.stopped)
        self._report(task, how)

    def _start(self, slot: int, task: Task, folder: Path, *, resumes: bool) -> Active:
        with writing(folder):
            if resumes:
                (folder / LOCK).unlink(missing_ok=True)  # no process holds the lock; see `is_alive`
            else:
                if folder.exists():
                    shutil.rmtree(folder)
                folder.mkdir(parents=True)
                task.prepare(folder)
            (folder / LOG).parent.mkdir(exist_ok=True)
            log = (folder / LOG).open("ab")
        words = ("--resume", str(folder)) if resumes else (*task.words, "--run-dir", str(folder))
        environment = dict(os.environ)
        if self.gpus and self.at_once > 1:
            mine = self.visible[slot * self.gpus : (slot + 1) * self.gpus]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        with log:
            with suppress(BlockingIOError):  # a process of the previous run still holds it
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the run inherits it
            process = subprocess.Popen(
                [*self.command, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip
        return Active(task=task, folder=folder, process=process)

    def _finish(self, active: Active) -> None:
        """Note what became of a run that has ended."""
        task, folder = active.task, active.folder
        state, step = look(folder, task.steps)
        code = 0 if active.process is None else active.process.returncode
        end = outcome(folder)
        if state in ENDED:
            message, line = "", f"{state}{_values(folder)}   {folder}"
        elif end.get("status") in ("interrupted", "preempted") or code in STOPPED:
            state, message = "interrupted", f"step {step} is saved" if step else "nothing is saved"
            line = f"interrupted, {message}"
        else:
            killed = code < 0 or active.process is None
            why = "it was killed" if killed else _tail(folder) or f"it ended with code {code}"
            state, message = "failed", str(end.get("message") or why)
            line = f"failed: {message}\n  its output is in {folder / LOG}"
        self.manifest.set(task.point.folder, state=state, message=message)
        self._report(task, line)

    def _report_steps(self) -> None:
        """Say now and then how far the runs are, if that changed since."""
        now = time.monotonic()
        if now - self._progress_at < PROGRESS_SECONDS:
            return
        self._progress_at = now
        for active in self._active.values():
            said = progress(active.folder, active.task.steps)
            if not said or said == self._earlier.get(active.folder):
                said = start_up(active.folder)
            if said and self._shown_progress.get(active.folder) != said:
                self._shown_progress[active.folder] = said
                self._report(active.task, said)

    def _stop(self, number: int) -> None:
        """Ask the runs to save and end; a second signal, as to `forgec run`, ends them at once."""
        if self._active and not self.stopped:
            running = counted(len(self._active), "run")
            self._say(f"waits for {running} to save a checkpoint; interrupt again to end now")
        self.stopped = self.stopped or number
        for active in self._active.values():
            active.send(number)

    def _entry(self, task: Task) -> Entry:
        return self.manifest.entries[task.point.folder]

    def _report(self, task: Task, text: str) -> None:
        number = 1 + next(i for i, each in enumerate(self.tasks) if each is task)
        since = time.monotonic() - self._began
        self._say(f"[{since:7.1f} s] {number}/{len(self.tasks)} {task.point.name}: {text}")


@contextmanager
def _handled(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` for the signals that ask a program to end, except those that are ignored."""
    before = {n: signal.getsignal(n) for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda got, _: act(got))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- what a run folder says


def look(folder: Path, steps: int | None) -> tuple[str, int]:
    """Return (state, step) of a point: an ended state, running, checkpoint, anew or new."""
    from forgedsl.runs.checkpoints import last_step

    end = outcome(folder)
    if end.get("status") == "done":
        return "done", 0
    if end.get("code") == GUARD:
        return "stopped by a guard", 0
    if is_alive(folder):
        return "running", 0
    step = last_step(folder)
    if step and steps is not None and step >= steps:
        return "done", step  # killed after its last step was saved
    if step and not (folder / "rehearsal.json").exists():
        return "checkpoint", step
    return ("anew" if (folder / "events.jsonl").exists() else "new"), 0


def outcome(folder: Path) -> dict[str, Any]:
    """The run.end event; empty while the run (or its continuation) goes on, or if it was killed."""
    from forgedsl.runs.data import jsonl

    edges = (e for e in jsonl(folder / "events.jsonl", []) if e.get("kind") in EDGES)
    last = deque(edges, maxlen=1)
    return last[0] if last and last[0]["kind"] == "run.end" else {}


def progress(folder: Path, steps: int | None) -> str:
    """Return how far a run is, from the last line of its metrics: `step 40/200, reward 0.412`; ""
    before its first step."""
    from forgedsl.runs.text import number

    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return ""
    for line in reversed(lines):
        with suppress(ValueError):  # the run is writing this line, or its begin was cut
            row = json.loads(line)
            of = "" if steps is None else f"/{steps}"
            reward = row.get("reward_mean")
            said = f"loss {number(row.get('loss'))}" if reward is None else None
            return f"step {row['step']}{of}, {said or f'reward {number(reward)}'}"
    return ""


def start_up(folder: Path) -> str:
    """Return the last line that a run printed before its first step, without its time: `still
    starting services: trainer`; "" while it has printed none."""
    text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    timed = re.findall(r"^\[ *[\d.]+ s\] (.*)\n", text, re.MULTILINE)
    return timed[-1] if timed else ""


def is_alive(folder: Path) -> bool:
    """True if a process runs in the folder. A run holds the lock of its folder. While it imports,
    before it takes this lock, it holds the lock of its log, which it inherited when it was
    started."""
    from forgedsl.runs.data import is_running

    if (folder / LOCK).exists():
        return is_running(folder)
    for name in LOGS:
        with suppress(FileNotFoundError), (folder / name).open(encoding="utf-8") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def owner(folder: Path) -> int:
    """The process that has the lock of a run folder; 0 if it has not written its name."""
    try:
        return int(json.loads((folder / LOCK).read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError):
        return 0


def _tail(folder: Path) -> str:
    """The last lines that a run printed."""
    text = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip()
    return " / ".join(text.splitlines()[-TAIL:])


def _values(folder: Path) -> str:
    """Steps, reward and evals at the end of a run: `, 200 steps, reward 0.912, held_out 0.955`."""
    from forgedsl.runs.data import load_run
    from forgedsl.runs.text import number
    from forgedsl.runs.verdict import at_end, evals, points

    data = load_run(folder)
    said = [counted(int(data.rows[-1]["step"]) if data.rows else 0, "step")]
    if (reward := at_end(points(data, "reward_mean"))) is not None:
        said.append(f"reward {number(reward)}")
    said += [f"{name} {number(values[-1][1])}" for name, values in evals(data).items()]
    return "".join(f", {each}" for each in said)
