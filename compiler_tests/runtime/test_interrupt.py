"""What each Ctrl-C says and does; what a full disk leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.runs.checkpoints import (
    checkpoint_steps,
    drop_partial,
    last_step,
    resume_command,
    spoilt_steps,
)
from forgedsl_runtime import interrupt as module
from forgedsl_runtime.endpoints import CheckpointError, ServiceError, ServiceFailure
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.interrupt import Interrupt
from forgedsl_runtime.services.endpoints import MonarchEndpoints


class Stopped(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def pressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An interrupt of a run with 5 steps, 3 of them in a checkpoint, and what was said."""

    def leave(code: int) -> None:
        raise Stopped(code)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.os, "_exit", leave)
    whole(tmp_path, 3)
    log, said = EventLog(), []
    log.subscribe(lambda e: said.append(e["text"]) if e["kind"] == "notice" else None)
    interrupt = Interrupt(log, tmp_path, lambda: said.append("cleaned up"))
    interrupt.act = lambda noticed: said.append("asked")
    log.subscribe(interrupt.on_event)
    log.emit("controller.start", step=0)
    for step in range(1, 6):
        log.emit("step.end", step=step)
        if step == 3:
            log.emit("checkpoint.saved", step=step)
    return interrupt, said


def whole(run_dir: Path, step: int) -> None:
    folder = run_dir / f"checkpoints/step-{step}"
    folder.mkdir(parents=True)
    (folder / "controller.json").write_text("{}")


def test_the_first_says_that_a_checkpoint_is_saved(pressed: Any) -> None:
    interrupt, said = pressed
    interrupt()
    assert "interrupted: a checkpoint is saved" in said[0]
    assert said[1:] == ["asked"]


def test_the_second_says_what_a_third_would_cost(pressed: Any) -> None:
    interrupt, said = pressed
    interrupt()
    interrupt()
    assert said[-1] == "not saved yet: steps 4 to 5; Ctrl-C once more stops at once and loses them"


def test_the_third_stops_and_says_what_was_lost(
    pressed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt, said = pressed
    interrupt()
    interrupt()
    with pytest.raises(Stopped, match="130"):
        interrupt()
    assert said[-1] == "cleaned up"
    assert capsys.readouterr().err == (
        "\nstopped at once; steps 4 to 5 lost; `forgec run --resume .` continues after step 3\n"
    )


CLOSED = """
import asyncio, os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from forgedsl_runtime import launch
from forgedsl_runtime.events import EventLog

async def execute(this, interrupt):
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.2)
    return launch.Outcome(code=0, status="finished")

# whoever runs the tests may be under nohup, too
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1:] == ["nohup"] else signal.SIG_DFL)
launch._execute = execute
this = SimpleNamespace(events=EventLog(), run_dir=Path(), clean_up=None)
sys.exit(launch._outcome(this).code)
"""


@pytest.mark.parametrize(("how", "code"), [((), 130), (("nohup",), 0)])
def test_a_terminal_that_closes_is_an_interrupt_unless_nohup_said_so(
    how: tuple[str, ...], code: int
) -> None:
    assert subprocess.run([sys.executable, "-c", CLOSED, *how], timeout=60).returncode == code


def test_half_a_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/step-9").mkdir(parents=True)
    whole(tmp_path, 4)
    drop_partial(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-4"]
    assert resume_command(tmp_path) == f"forgec run --resume {tmp_path}"


class Trainer:
    """One that writes what a trainer writes."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def save(self, step: int) -> None:
        (self._run_dir / f"checkpoints/step-{step}").mkdir()

    async def saved(self) -> None:
        pass


def test_so_many_checkpoints_stay_as_are_to_be_kept(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    for step in (1, 2, 3):
        whole(tmp_path, step)
    job = make_job(services={"trainer": make_titan()}, checkpoint=spec.Checkpoint(keep=2))
    endpoints = MonarchEndpoints(
        job, tmp_path, datasets={}, samplers={}, trainers={"trainer": Trainer(tmp_path)},
        rewards=None, program=None, record_batches=0,
    )  # fmt: skip
    asyncio.run(endpoints.save(4, {}, asyncio.Event()))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-3", "step-4"]


def test_a_checkpoint_that_a_crash_has_spoilt_is_passed_over(tmp_path: Path) -> None:
    whole(tmp_path, 4)
    whole(tmp_path, 9)
    (tmp_path / "checkpoints/step-9/controller.json").write_text('{"step": 9, "ver')
    assert (checkpoint_steps(tmp_path), spoilt_steps(tmp_path)) == ([4], [9])


class FullTrainer:
    """A trainer whose disk fills up while it writes."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def save(self, step: int) -> None:
        folder = self._run_dir / f"checkpoints/step-{step}"
        folder.mkdir(parents=True)
        (folder / "half").write_text("x")

    async def saved(self) -> None:
        failure = ServiceFailure(service="trainer", origin="", message="No space left on device")
        raise ServiceError(failure)


def test_a_full_disk_is_named_with_what_is_safe(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    endpoints = MonarchEndpoints(
        make_job(services={"trainer": make_titan()}), tmp_path, datasets={}, samplers={},
        trainers={"trainer": FullTrainer(tmp_path)}, rewards=None, program=None, record_batches=0,
    )  # fmt: skip
    whole(tmp_path, 2)
    with pytest.raises(CheckpointError) as caught:
        asyncio.run(endpoints.save(5, {}, asyncio.Event()))
    text = f"{caught.value} {caught.value.remedy}"
    assert f"checkpoint of step 5 cannot be written to {tmp_path}/checkpoints/step-5" in text
    assert "No space left on device" in text
    assert "the checkpoint of step 2 is safe" in text
    assert not (tmp_path / "checkpoints/step-5").exists()


def test_a_run_folder_that_was_moved_is_not_made_anew(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    gone = tmp_path / "run"
    endpoints = MonarchEndpoints(
        make_job(services={"trainer": make_titan()}), gone, datasets={}, samplers={},
        trainers={"trainer": FullTrainer(gone)}, rewards=None, program=None, record_batches=0,
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="run has been moved or removed"):
        asyncio.run(endpoints.save(5, {}, asyncio.Event()))
    assert not gone.exists()


class SlowTrainer(FullTrainer):
    """A trainer that has written half of it when the process ends."""

    async def saved(self) -> None:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_stop_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    endpoints = MonarchEndpoints(
        make_job(services={"trainer": make_titan()}), tmp_path, datasets={}, samplers={},
        trainers={"trainer": SlowTrainer(tmp_path)}, rewards=None, program=None, record_batches=0,
    )  # fmt: skip
    whole(tmp_path, 2)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(endpoints.save(5, {}, asyncio.Event()), 0.05))
    assert (tmp_path / "checkpoints/step-5/half").exists()
    assert (last_step(tmp_path), resume_command(tmp_path)) == (2, f"forgec run --resume {tmp_path}")
    drop_partial(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-2"]


def test_events_that_cannot_be_written_end_the_run_once() -> None:
    log, seen = EventLog(Path("/dev/full")), []
    log.subscribe(lambda event: seen.append(event["kind"]))
    with pytest.raises(RunError, match=r"cannot write /dev/full: No space left on device"):
        log.emit("step.end", step=1)
    log.emit("run.end", code=5)
    log.close()
    assert seen == ["step.end", "run.end"]


def test_a_resumed_run_does_not_write_on_after_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind": "a"}\n{"kind": "' + "b" * 200_000)
    with EventLog(path) as log:
        log.emit("c")
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["a", "c"]


PRESSED = """
import asyncio, os, signal
from forgedsl_runtime import launch

class Pressed:
    count = 0
    def __call__(self, number):
        self.count += 1
        self.act(False)

async def run(interrupt):
    done = asyncio.Event()
    interrupt.act = lambda noticed: done.set()
    os.kill(os.getpid(), signal.SIGINT)  # the user interrupts the cell
    await done.wait()
    return interrupt.count

async def cell():
    interrupt = Pressed()
    return launch._run_in_thread(run(interrupt), interrupt)

async def notebook():
    print([await cell(), await cell()], signal.getsignal(signal.SIGINT) is before)

signal.signal(signal.SIGINT, signal.default_int_handler)
before = signal.getsignal(signal.SIGINT)
loop = asyncio.new_event_loop()
loop.run_until_complete(notebook())
"""


def test_a_cell_that_is_interrupted_ends_its_run_and_the_kernel_lives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESSED], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[1, 1] True\n", 0), done.stderr
