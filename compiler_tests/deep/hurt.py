"""A `forgec run` in a process of its own, watched and hurt from outside.

Hurt(folder, program, words) --> step(n) waits, pids(mesh), kill_tree() --> history(), weights()
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from forgedsl.runs.data import jsonl
from forgedsl.runs.packed import unpacked

PIPELINES = Path(__file__).parents[2] / "pipelines"
FORGEC = (sys.executable, "-m", "forgedsl.cli.main")
SMALL = ("prompts=4", "group=4", "held_out.limit=4", 'checkpoint.export=hf("export")')
WIDE = ("launcher=process", "cluster.hosts=3", "generator.replicas=2")
LOG = re.compile(r"(.+?)-(\d+)\.log")


class Hurt:
    """A run in `folder`/`run`; `words` follow `--set`."""

    def __init__(
        self, folder: Path, program: Path, words: Iterable[str], run: str = "run",
        profile: str | None = "cpu",
    ) -> None:  # fmt: skip
        self.dir, self.folder = folder / run, folder
        chosen = ["--profile", profile] if profile is not None else []
        command = [*FORGEC, "run", str(program), *chosen, "--run-dir", run]
        self.ran = self._start([*command, "--set", *words])

    def resume(self) -> None:
        """Go on from the last checkpoint."""
        self.ran = self._start([*FORGEC, "run", "--resume", self.dir.name])

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        self.seen: dict[int, psutil.Process] = {}
        with (self.folder / "output.txt").open("ab") as out:
            return subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out)

    def tree(self) -> list[psutil.Process]:
        """All processes of it that there are now, the controller first."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.ran.pid)
            found = [root, *root.children(recursive=True)]
            self.seen |= {process.pid: process for process in found}
            return found
        return []

    def pids(self, mesh: str) -> list[int]:
        """Its living processes, in the order of their start."""
        named = [LOG.fullmatch(file.name) for file in self.dir.glob("logs/*.log")]
        mine = {int(match[2]) for match in named if match and match[1] == mesh}
        return [p.pid for p in self.tree() if p.pid in mine and alive(p)]

    def host(self, index: int) -> psutil.Process:
        """The worker that is a host of `launcher = process`."""
        end = f"/host{index}"
        return next(p for p in self.tree() if alive(p) and p.cmdline()[-1].endswith(end))

    def rows(self) -> list[dict[str, Any]]:
        return list(jsonl(self.dir / "metrics.jsonl", []))

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        found = unpacked(jsonl(self.dir / "events.jsonl", []))
        return [event for event in found if not kinds or event["kind"] in kinds]

    def step(self, number: int, seconds: float = 900) -> None:
        """Wait for the end of a step."""
        self.until(lambda: any(row["step"] >= number for row in self.rows()), seconds)

    def until(self, there: Callable[[], object], seconds: float = 900) -> None:
        """Wait for something to be so."""
        end = time.monotonic() + seconds
        while not there():
            assert self.ran.poll() is None, f"it ended with {self.ran.returncode}\n{self.said()}"
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def kill_tree(self) -> None:
        """`kill -9` of everything."""
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.ran.wait()

    def end(self, seconds: float = 1800) -> int:
        return self.ran.wait(seconds)

    def left(self, seconds: float) -> list[str]:
        """What is still there of all that `tree` saw, after at most so long."""
        end = time.monotonic() + seconds
        while (there := [p for p in self.seen.values() if alive(p)]) and time.monotonic() < end:
            time.sleep(0.2)
        return [f"{p.pid} {' '.join(p.cmdline())[-200:]}" for p in there]

    def said(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")[-6000:]

    def history(self) -> dict[int, dict[str, Any]]:
        """The end of each step as it counts: what was trained after a checkpoint that the run was
        resumed from is as if it had not been."""
        found: dict[int, dict[str, Any]] = {}
        for event in self.events("controller.start", "step.end"):
            if event["kind"] == "step.end":
                found[event["step"]] = event
            else:
                found = {step: e for step, e in found.items() if step <= event["step"]}
        return found

    def weights(self) -> dict[str, bytes]:
        """Of the export, as bytes."""
        return {f.name: f.read_bytes() for f in sorted(self.dir.glob("export/*.safetensors"))}


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def synchronous(folder: Path) -> Path:
    """grpo_math.forge, generator and trainer in turns."""
    text, count = re.subn(
        r"^schedule async \{.*\}$", "schedule sync { steps = 500 }",
        (PIPELINES / "grpo_math.forge").read_text(), flags=re.MULTILINE,
    )  # fmt: skip
    assert count == 1, "the schedule of grpo_math.forge is written otherwise now"
    for name in ("models", "data"):
        (folder / name).symlink_to((PIPELINES / name).resolve())
    (folder / "sync.forge").write_text(text)
    return folder / "sync.forge"


def hard(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
