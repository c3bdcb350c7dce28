"""Files of a run outside of its folder: shared memory, and temporary files of its processes.

    Scratch() --key--> /dev/shm/forgedsl-KEY-owner   locked as long as this process lives
                  |--> /dev/shm/forgedsl-KEY-*       weights in transfer, rendezvous files
                  |--> /dev/shm/forgedsl-KEY-sockets sockets, if the path of TMPDIR is too long
                  |--> /dev/shm/sem.forgedsl-KEY-*   semaphores of multiprocessing in its processes
                  |--> $TMPDIR/forgedsl-KEY/         TMPDIR of every process of the run
                  `--> SWEEP, outlives this process: kills processes with RUN=forgedsl-KEY
    remove_dead() --owner's lock is free--> all of it is removed

A lock is used, not a process id: containers may share memory but number processes separately.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from multiprocessing import process
from pathlib import Path

from forgedsl.errors import LaunchError
from forgedsl.syntax import cache

SHM = Path("/dev/shm")
OWNER = "-owner"
LONGEST = 64
"""longest TMPDIR, in characters, in which socket paths fit"""
RUN = "FORGEDSL_RUN"
"""environment variable that marks all descendants of a run's processes, also after reparenting"""
SWEEP_SECONDS = 10.0
SWEEP = """cat >/dev/null
while pids=$(grep -lzsxF "$0" /proc/[0-9]*/environ | cut -d/ -f3) && [ "$pids" ]; do
kill -9 $pids; sleep 0.1; done"""
"""shell script that waits until its stdin closes, then kills every process of the run. It finds
them by RUN in their environment, so it also kills stopped and reparented ones"""


class Scratch:
    """Temporary files and shared memory of a run, made at its start; `close` removes everything."""

    def __init__(self) -> None:
        self.key = f"{os.getpid()}-{time.time_ns() % 10**9}"
        try:
            # Use the folder that Python found writable. Monarch would take TMPDIR without a check.
            folder = os.environ["TMPDIR"] = tempfile.gettempdir()
            self.temp = Path(folder) / f"forgedsl-{self.key}"
            self.temp.mkdir(mode=0o700)
            self._owner = self._claim()
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise LaunchError(
                f"a run needs a temporary folder and shared memory in {SHM}: "
                f"{place}{error.strerror}; set TMPDIR to another folder, or look with `df {SHM}` "
                "at what is free there (--shm-size gives a container more)"
            ) from error
        self._sweeper = subprocess.Popen(
            ["sh", "-c", SWEEP, f"{RUN}={self.temp.name}"], stdin=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def _claim(self) -> FileIO:
        # Lock the file before it gets its name: another process would remove the files of a run
        # whose owner file is unlocked.
        fresh = SHM / f"forgedsl-{self.key}.new"
        try:
            owner = fresh.open("xb", buffering=0)
            fresh.chmod(0o600)
            fcntl.flock(owner, fcntl.LOCK_EX)
            owner.write(os.fsencode(self.temp))
            fresh.rename(SHM / f"forgedsl-{self.key}{OWNER}")
        except OSError:
            fresh.unlink(missing_ok=True)
            self.temp.rmdir()
            raise
        return owner

    def environment(self) -> dict[str, str]:
        """Return environment variables for the processes of the run. The caches of torch and Triton
        are set, because by default they would lie in TMPDIR and be lost before the next start."""
        names = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        kept = {key: os.environ.get(key, str(cache.folder() / own)) for key, own in names.items()}
        return {"TMPDIR": str(self.temp), RUN: self.temp.name, **kept}

    def close(self) -> None:
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it continues after this process ends
            self._sweeper.wait(SWEEP_SECONDS)
        shutil.rmtree(self.temp, ignore_errors=True)  # a dying process may still write files
        remove_buffers(self.key)
        self._owner.close()


def own_semaphores(environment: Mapping[str, str]) -> None:
    """Name the multiprocessing semaphores of this process and its children after the run. A killed
    process leaves its semaphores behind; `sem.mp-xyz` could not be assigned to a run."""
    name = Path(environment.get("TMPDIR", "")).name  # a rehearsal has none
    if name.startswith("forgedsl-"):
        config = process.current_process()._config  # type: ignore[attr-defined]
        config["semprefix"] = f"/{name}"


def short_folder(environment: Mapping[str, str]) -> str:
    """Return a folder of the run for sockets; "" if TMPDIR is short enough. A socket path has at
    most 107 characters, and names take 37 of them."""
    temp = Path(environment.get("TMPDIR", ""))
    if len(str(temp)) <= LONGEST or not temp.name.startswith("forgedsl-"):
        return ""
    folder = SHM / f"{temp.name}-sockets"
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder)


def remove_buffers(run_key: str) -> None:
    """Unlink the shared memory of a run; killed processes leave theirs behind."""
    for pattern in (f"forgedsl-{run_key}-*", f"sem.forgedsl-{run_key}-*"):
        for file in SHM.glob(pattern):
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


def kill_marked(entry: str) -> None:
    """Kill all processes whose environment has an entry (NAME=VALUE), until none is left."""
    limit = time.monotonic() + SWEEP_SECONDS
    while (found := [*_carriers(entry.encode())]) and time.monotonic() < limit:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marks(name: str, entry: str) -> set[str]:
    """Return the values of the variable `name`, over all other processes whose environment has
    `entry` (NAME=VALUE)."""
    start, wanted = f"{name}=".encode(), entry.encode()
    return {
        each.removeprefix(start).decode()
        for _, environment in _environments(wanted)
        for each in environment
        if each.startswith(start)
    }


def _carriers(entry: bytes) -> Iterator[int]:
    """Yield the other processes that have an entry in their environment."""
    return (pid for pid, _ in _environments(entry))


def _environments(entry: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the environments of other processes that have an entry; zombies have none."""
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with suppress(OSError):
                environment = Path(folder.path, "environ").read_bytes()
                if entry in environment and entry in (found := environment.split(b"\0")):
                    yield int(folder.name), found


def remove_dead() -> list[str]:
    """Remove the files of killed runs of this user, and kill the processes that they left; return
    the keys of those runs."""
    return [key for path in sorted(SHM.glob(f"forgedsl-*{OWNER}")) if (key := _remove(path))]


def _remove(path: Path) -> str | None:
    """If the owner process of this file is dead, remove its run's files and return the key; else
    None."""
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), encoding="utf-8") as owner:
            if os.fstat(owner.fileno()).st_uid != os.geteuid():
                return None
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temp = Path(owner.read())
            key = path.name.removeprefix("forgedsl-").removesuffix(OWNER)
            kill_marked(f"{RUN}=forgedsl-{key}")  # its sweeper may have been killed, too
            if temp.name == f"forgedsl-{key}":
                shutil.rmtree(temp, ignore_errors=True)
            remove_buffers(key)
            return key
    except OSError:  # it is locked, another run removes it right now, or it is not ours to open
        return None
