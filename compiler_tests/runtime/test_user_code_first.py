"""A run calls user code once while its processes start. If it cannot work, the run ends then."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from forgedsl.cli.running import left_as_it_was, nearest_folder
from forgedsl.errors import LaunchError, UserCodeError
from forgedsl_runtime.services import real_backend
from forgedsl_runtime.services.real_backend import RealBackend

PIPELINES = Path(__file__).parents[2] / "pipelines"


def this(trial: Any, told: list[tuple[str, str]]) -> Any:
    events = SimpleNamespace(emit=lambda kind, *, text: told.append((kind, text)))
    return SimpleNamespace(trial=trial, job_dir=Path("here"), events=events)


def test_what_it_says_becomes_events() -> None:
    told: list[tuple[str, str]] = []
    said = [("warning", "reward a fails"), ("note", "a tool is not named")]
    asyncio.run(real_backend._call_user_code(this(lambda folder: said, told)))
    assert told == said


def test_nothing_is_started_if_it_cannot_work() -> None:
    def trial(folder: Path) -> list[tuple[str, str]]:
        raise LaunchError(f"no reward in {folder}")

    fleet: Any = None  # any use of it would be another error
    with pytest.raises(LaunchError, match="no reward in here"):
        asyncio.run(RealBackend().prepare(this(trial, []), fleet))


def test_nobody_waits_for_it_after_an_interrupt() -> None:
    """It goes on in its thread, and its result is dropped."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def trial(folder: Path) -> list[tuple[str, str]]:
        begun.set()
        assert go.wait(60)
        ended.set()
        return [("note", "too late")]

    told: list[tuple[str, str]] = []

    async def main() -> None:
        task = asyncio.create_task(real_backend._call_user_code(this(trial, told)))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not ended.is_set()
    go.set()
    assert ended.wait(60)
    assert told == []


@pytest.mark.timeout(180)
def test_a_broken_reward_ends_the_run_and_its_processes(tmp_path: Path) -> None:
    text = (PIPELINES / "dapo_code.forge").read_text("utf-8")
    for folder in ("data", "models"):
        (tmp_path / folder).symlink_to(PIPELINES / folder)
    (tmp_path / "rewards").mkdir()
    code = (PIPELINES / "rewards/sandbox.py").read_text("utf-8")
    assert code.count("= solution(") == 1
    broken = code.replace("= solution(", "= solutoin(")
    (tmp_path / "rewards/sandbox.py").write_text(broken, "utf-8")
    (tmp_path / "code.forge").write_text(text, "utf-8")
    command = [sys.executable, "-m", "forgedsl.cli.main", "run", "code.forge"]
    command += ["--set", "schedule.steps=1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        started: set[psutil.Process] = set()
        while run.poll() is None:
            started |= set(psutil.Process(run.pid).children(recursive=True))
            time.sleep(0.1)
        assert run.stdout is not None
        said = run.stdout.read()
    assert run.returncode == 4, said
    assert "name 'solutoin' is not defined" in said
    assert len(started) > 3  # trainer, engine, pools of rewards
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("there", "prepared", "left"),
    [
        ((), False, set()),  # nothing was there
        (("runs/other",), False, {"runs", "runs/other"}),
        (("runs/new/own.txt",), False, {"runs", "runs/new", "runs/new/own.txt"}),
        (("runs/new/job.json",), True, {"runs", "runs/new", "runs/new/job.json"}),
    ],
)
def test_what_was_there_before_is_left(
    tmp_path: Path, there: tuple[str, ...], prepared: bool, left: set[str]
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    run_dir = tmp_path / "runs/new"
    before = nearest_folder(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)

    @left_as_it_was(run_dir, before, prepared=prepared)
    def start() -> None:
        (run_dir / "logs").mkdir()
        for name in ("job.json", "events.jsonl", "logs/controller.log"):
            (run_dir / name).touch()
        raise UserCodeError("no")

    with pytest.raises(UserCodeError):
        start()
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == left


@pytest.mark.parametrize("done", ["metrics.jsonl", "checkpoints/step-3/controller.json"])
def test_a_run_that_has_done_a_step_is_left(tmp_path: Path, done: str) -> None:
    """A package may also be missing at the end of a run, for the export."""
    run_dir = tmp_path / "run"

    @left_as_it_was(run_dir, nearest_folder(run_dir), prepared=False)
    def start() -> None:
        (run_dir / done).parent.mkdir(parents=True)
        (run_dir / done).write_text("{}", "utf-8")
        raise ModuleNotFoundError("safetensors")

    with pytest.raises(ModuleNotFoundError):
        start()
    assert (run_dir / done).is_file()
