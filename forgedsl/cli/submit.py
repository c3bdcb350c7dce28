"""Submits a job to its scheduler: `forgec run` outside of an allocation.

    RUN/{job.json, job.sbatch} --sbatch--> waits in the queue --> runs --events--> progress here
        Ctrl-C: a checkpoint, then the end; second Ctrl-C: the end at once
        this process dies: the job continues

The controller runs in the allocation, on its first node. The run does not depend on this process.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.run_lock import release
from forgedsl.launchers.base import Launcher

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

SCRIPT = "job.sbatch"
SECONDS = 1.0
"""between two queries of the queue"""
FILES_SECONDS = 20.0
"""until the last writes of a node are visible here, on a shared file system"""
EXIT_LAUNCH, EXIT_FAILED, EXIT_INTERRUPTED = 4, 5, 130


def submitter(job: Job) -> Launcher | None:
    """Return the launcher if the job must be submitted; None if it runs here."""
    from forgedsl.launchers.registry import launcher

    try:
        facts = launcher(job.launcher.kind)
    except LookupError:  # the runtime reports an unknown launcher
        return None
    inside = os.environ.get(facts.allocation) if facts.allocation else ""
    return facts if facts.submit and not inside and shutil.which(facts.submit) else None


def submit(
    job: Job, facts: Launcher, run_dir: Path, options: Sequence[str], *, resume: bool, quiet: bool
) -> int:
    """Submit a job that calls `forgec run` with `options`, wait for it and show its progress;
    return the exit code of the run."""
    from forgedsl.errors import writing

    run_dir = run_dir.resolve()
    since = _size(run_dir / "events.jsonl")
    with writing(run_dir):
        (run_dir / "logs").mkdir(exist_ok=True)
        (run_dir / SCRIPT).write_text(_script(job, facts, run_dir, options, resume), "utf-8")
    release(run_dir)  # the submitted job locks the folder
    done = subprocess.run(
        [facts.submit, "--parsable", str(run_dir / SCRIPT)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"{facts.submit} refused {run_dir / SCRIPT}: {done.stderr.strip()}", file=sys.stderr)
        return EXIT_LAUNCH
    ident = done.stdout.strip().partition(";")[0]
    print(
        f"{job.name}: run folder {run_dir}\nsubmitted as job {ident}; the job does not need this "
        f"process; to follow it: forgec watch {run_dir}",
        file=sys.stderr,
    )
    return _Job(ident, run_dir).attend(job, since, quiet=quiet)


def _script(job: Job, facts: Launcher, run_dir: Path, options: Sequence[str], resume: bool) -> str:
    from forgedsl.build.artifacts import allocation

    assert facts.manifest is not None
    fresh = [f"{run_dir}/job.json", "--run-dir", str(run_dir)]
    words = ["run", *options, *(["--resume", str(run_dir)] if resume else fresh)]
    args = job.launcher.args
    # setup or container provides `forgec` on the node
    own = args.get("setup") or args.get("container")
    program = ["forgec"] if own else [sys.executable, "-m", "forgedsl.cli.main"]
    asked = allocation(
        job,
        command=shlex.join([*program, *words]),
        output=f"{run_dir}/logs/slurm-%j.out",
        path=str(Path(sys.executable).parent),
    )
    return facts.manifest.text(asked, args)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class _Job:
    """A submitted job, and the state of waiting for it."""

    def __init__(self, ident: str, run_dir: Path) -> None:
        self.ident, self.run_dir = ident, run_dir
        self.state = self.reason = ""
        self.begin = time.monotonic()
        self.asked_at = -SECONDS
        self.interrupts = 0

    def attend(self, job: Job, since: int, *, quiet: bool) -> int:
        """Follow the job to its end. Ctrl-C asks it to save a checkpoint and end."""
        from forgedsl.runs.follow import follow
        from forgedsl.runs.summary import summary
        from forgedsl_runtime.readers.progress import open_progress

        reader = None
        code: int | None = None
        path = self.run_dir / "events.jsonl"
        while True:
            try:
                while self.waiting():
                    time.sleep(SECONDS)
                if reader is None and not quiet and job.logging.console:
                    reader = open_progress(job)
                take = reader.on_event if reader is not None else (lambda event: None)
                code = follow(path, take, self.over, since=since)
                break
            except KeyboardInterrupt:
                self._interrupt()
                since = _size(path)
        if reader is not None:
            reader.close()
        if code is None:
            return self._without_end()
        while not self.over():  # the job still writes its report
            time.sleep(SECONDS)
        print(summary(self.run_dir, code), flush=True)
        return code

    def waiting(self) -> bool:
        """True if the job is still in the queue. Changes of its state are printed."""
        before = (self.state, self.reason)
        self._ask()
        if self.state == "PENDING" and before != (self.state, self.reason):
            print(f"job {self.ident} waits in the queue ({self.reason})", file=sys.stderr)
        elif self.state == "RUNNING" and before[0] != "RUNNING":
            seconds = time.monotonic() - self.begin
            print(f"job {self.ident} has its hosts after {seconds:.0f} s", file=sys.stderr)
        return self.state in ("PENDING", "CONFIGURING")

    def over(self) -> bool:
        self._ask()
        return self.state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")

    def _ask(self) -> None:
        if time.monotonic() - self.asked_at < SECONDS:
            return
        done = subprocess.run(
            ["scontrol", "-o", "show", "job", self.ident], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        self.asked_at = time.monotonic()
        if done.returncode == 0:
            self.state = _field("JobState", done.stdout)
            self.reason = _field("Reason", done.stdout)
        elif "Invalid job id" in done.stderr:
            self.state = "GONE"  # it ended long ago; other errors may be temporary

    def _interrupt(self) -> None:
        self.interrupts += 1
        self._ask()
        if self.interrupts == 1 and self.state == "RUNNING":
            print(
                "interrupted: the run was asked to write a checkpoint and end (Ctrl-C again ends "
                "it at once)",
                file=sys.stderr,
            )
            words = ["--signal=TERM", "--batch", self.ident]
        else:
            print(f"job {self.ident} is cancelled", file=sys.stderr)
            words = [self.ident]
        subprocess.run(["scancel", *words], check=False)

    def _without_end(self) -> int:
        """Report a job that ended without an end event of the run."""
        output = self.run_dir / f"logs/slurm-{self.ident}.out"
        tail = output.read_text(errors="replace")[-2000:].strip() if output.is_file() else ""
        print(
            f"job {self.ident} ended ({self.state}) before the run did"
            + (f"; {output} ends with:\n{tail}" if tail else ""),
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED if self.interrupts else EXIT_FAILED


def _field(name: str, text: str) -> str:
    found = re.search(rf"\b{name}=(\S+)", text)
    return found[1] if found else ""
