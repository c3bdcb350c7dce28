"""Wrong arguments and interrupts: what is refused, what it says, and what stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forgedsl
from forgedsl.cli import run_lock
from forgedsl.cli.run_lock import claim, is_held
from forgedsl.python import results
from forgedsl.python.groups import Buffer
from forgedsl.python.interrupts import interrupts_wait

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"


@pytest.fixture(scope="module")
def pipeline() -> forgedsl.Pipeline:
    return forgedsl.load(GRPO, profile="cpu")


@pytest.mark.parametrize("given", [3, ["group=4"], {"group": 4}])
def test_overrides_of_set_are_texts(pipeline: forgedsl.Pipeline, given: Any) -> None:
    with pytest.raises(TypeError, match=r'p\.set takes texts, p\.set\("group=4"\), and keywords'):
        pipeline.set(given)


@pytest.mark.parametrize(
    ("count", "version", "told"),
    [
        ("x", 0, "`count` must be a whole number of at least 1, not 'x'"),
        (-1, 0, "`count` must be a whole number of at least 1, not -1"),
        (2, None, "`version` must be a whole number of at least 0, not None"),
    ],
)
def test_a_buffer_takes_numbers(count: Any, version: Any, told: str) -> None:
    with pytest.raises(forgedsl.PipelineError, match=f"^{told}$"):
        Buffer(4, 2, seed=0).draw(count, version)


@pytest.mark.parametrize("given", [3, [1]])
def test_a_buffer_takes_groups(given: Any) -> None:
    with pytest.raises(forgedsl.PipelineError, match=r"^`groups` must be a list of groups, as "):
        Buffer(4, 2, seed=0).put(given)


def test_finish_refuses_the_folder_of_a_session(
    pipeline: forgedsl.Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "session.json").write_text("{}")
    with pytest.raises(forgedsl.PipelineError, match=r"contains a Session of Python; name another"):
        pipeline.finish(tmp_path)
    with pytest.raises(TypeError, match="`folder` must be the path of a run folder, not 3"):
        pipeline.finish(3)  # type: ignore[arg-type]


def test_an_interrupt_waits_for_the_end_of_a_body_and_a_second_does_not() -> None:
    reached = []

    def interrupted(times: int) -> None:
        with interrupts_wait():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            reached.append(times)

    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            interrupted(times)
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pytorch_can_be_used_after_an_interrupt_while_it_is_imported() -> None:
    text = f"""
import signal, forgedsl
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
pipeline = forgedsl.load({str(GRPO)!r}, profile="cpu")
pipeline.plan()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    pipeline.loss()
    print("no interrupt")
except KeyboardInterrupt:
    print("interrupted")
print(pipeline.loss().name)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout == "interrupted\ngrpo\n", done.stderr


def test_an_interrupt_while_a_run_starts_leaves_no_run_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *values: Any, **named: Any) -> None:
            super().__init__(*values, **named)
            started.append(self)

    def interrupted(self: run_lock.Handover, pid: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results.subprocess, "Popen", Started)
    monkeypatch.setattr(run_lock.Handover, "to", interrupted)
    claim(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        results.begin(tmp_path, ("nope.forge",), None)
    (process,) = started
    assert process.returncode is not None
    assert not is_held(tmp_path)
