"""What a run keeps outside of its folder goes with it, and what a killed one left with the next."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from forgedsl.errors import LaunchError, RunError
from forgedsl_runtime import temporary_files
from forgedsl_runtime.transports.shm import SharedMemory

KILLED = """
import os, signal
from forgedsl_runtime.temporary_files import SHM, Scratch
run = Scratch()
(SHM / f"forgedsl-{run.key}-0").write_text("weights")
(run.temp / "vllm_dist_0").write_text("x")
print(run.key, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs of this host are not to be touched."""
    monkeypatch.setattr(temporary_files, "SHM", tmp_path)
    monkeypatch.setattr(temporary_files.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a run sets it


def test_a_run_leaves_nothing(tmp_path: Path) -> None:
    mine = temporary_files.Scratch()
    (tmp_path / f"forgedsl-{mine.key}-0").write_text("weights")
    (Path(mine.environment()["TMPDIR"]) / "vllm_dist_0").write_text("x")
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_sockets_have_a_short_path_where_tmpdir_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / "jobs" / ("x" * 60)
    long.mkdir(parents=True)
    monkeypatch.setattr(temporary_files.tempfile, "tempdir", str(long))
    mine = temporary_files.Scratch()
    sockets = temporary_files.short_folder(mine.environment())
    assert sockets == str(tmp_path / f"forgedsl-{mine.key}-sockets")
    (Path(sockets) / "one").touch()
    mine.close()
    assert not Path(sockets).exists()
    assert temporary_files.short_folder({"TMPDIR": "/tmp/forgedsl-1-2"}) == ""


def test_full_shared_memory_is_named_with_what_helps(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as a device with no byte left
    try:
        with pytest.raises(LaunchError, match=r"shared memory in .*File too large.*--shm-size"):
            temporary_files.Scratch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_tmpdir_that_cannot_be_written_reaches_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")  # Monarch asks for nothing else
    mine = temporary_files.Scratch()
    mine.close()
    assert os.environ["TMPDIR"] == str(tmp_path)


def test_what_torch_and_triton_compile_is_kept_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/somebody/.cache")
    run = temporary_files.Scratch()
    kept = [run.environment()[name] for name in names]
    run.close()
    assert kept == [f"/home/somebody/.cache/forgedsl/{own}" for own in ("inductor", "triton")]


def test_a_run_that_is_alive_keeps_its_own(tmp_path: Path) -> None:
    alive = temporary_files.Scratch()
    before = sorted(tmp_path.iterdir())
    assert temporary_files.remove_dead() == []
    assert sorted(tmp_path.iterdir()) == before
    alive.close()


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    text = KILLED.replace("run = ", f"import forgedsl_runtime.temporary_files as s, tempfile\n"
                          f"from pathlib import Path\nSHM = s.SHM = Path({str(tmp_path)!r})\n"
                          f"tempfile.tempdir = {str(tmp_path)!r}\nrun = ")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert len(list(tmp_path.iterdir())) == 3
    assert temporary_files.remove_dead() == [done.stdout.strip()]
    assert list(tmp_path.iterdir()) == []


def test_an_owner_that_names_another_folder_does_not_get_it_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "forgedsl-1-1-owner").write_text(str(tmp_path / "precious"))
    temporary_files.remove_dead()
    assert list(tmp_path.iterdir()) == [tmp_path / "precious"]


LOCKED = """
import multiprocessing, os, signal
from multiprocessing import resource_tracker
from forgedsl_runtime.temporary_files import own_semaphores
own_semaphores({"TMPDIR": "/tmp/forgedsl-KEY"})
lock = multiprocessing.get_context("spawn").Lock()
os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_semaphores_of_a_killed_process_are_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shm, key = Path("/dev/shm"), f"test-{os.getpid()}"
    monkeypatch.setattr(temporary_files, "SHM", shm)
    subprocess.run([sys.executable, "-c", LOCKED.replace("KEY", key)])
    left = list(shm.glob(f"sem.forgedsl-{key}-*"))
    temporary_files.remove_buffers(key)
    assert (len(left), left[0].exists()) == (1, False)


def test_memory_for_weights_is_there_before_it_is_written_to() -> None:
    key = f"test-{os.getpid()}"
    buffers = SharedMemory(key)
    buffer, name = buffers.make(0, 1 << 20)
    held = os.stat(f"/dev/shm/{name}").st_blocks * 512
    buffers.close()
    assert (buffer.numel(), held) == (1 << 20, 1 << 20)


def test_shared_memory_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [64 << 20]

    def one_fits(_file: int, _begin: int, size: int) -> None:
        if (left := free.pop() - size) < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        free.append(left)

    monkeypatch.setattr("os.posix_fallocate", one_fits)
    key = f"test-{os.getpid()}"
    words = r"needs 2 x 64 MiB, but /dev/shm has only .* free.* --shm-size"
    with pytest.raises(RunError, match=words):  # at the first version
        SharedMemory(key).make(0, 64 << 20)
    assert list(Path("/dev/shm").glob(f"forgedsl-{key}-*")) == []


ORPHAN = """
import os, signal, subprocess
from forgedsl_runtime.temporary_files import Scratch
own = os.environ | Scratch().environment()
subprocess.run("setsid sleep 900 >/dev/null 2>&1 & echo $!", shell=True, env=own, check=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_to_nobody_is_swept() -> None:
    """As a server that a reward has started, which is no child of any process of the run."""
    said = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, check=False).stdout
    assert gone(int(said))


def gone(pid: int) -> bool:
    """Whether a process ends within half a minute."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for _ in range(300):
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.1)
        process.kill()
        return False
    return True


def test_what_is_left_is_killed_by_the_next_run_if_the_sweeper_was_killed_too(
    tmp_path: Path,
) -> None:
    edits = (
        ("own = os.environ | Scratch().environment()",
         f"import forgedsl_runtime.temporary_files as s, tempfile, pathlib\n"
         f"s.SHM, tempfile.tempdir = pathlib.Path({str(tmp_path)!r}), {str(tmp_path)!r}\n"
         "run = Scratch()\nown = os.environ | run.environment()"),
        ("os.kill(os", "run._sweeper.kill()\nos.kill(os"),
    )  # fmt: skip
    program = ORPHAN
    for old, new in edits:
        assert old in program
        program = program.replace(old, new)
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE).stdout
    assert psutil.pid_exists(int(said))
    assert len(temporary_files.remove_dead()) == 1
    assert gone(int(said))
