"""A compiled model is saved by a child process, beside the engine's start."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from forgedsl_runtime.services.vllm.upstream import compiled_model

LONGEST_S = 60.0


class Counter:
    num_aot_artifacts_saved = 0


@pytest.fixture(autouse=True)
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    import vllm.compilation.counter as module

    made = Counter()
    monkeypatch.setattr(module, "compilation_counter", made)
    return made


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit statuses of children, as they end."""
    found: list[int] = []
    wait = os.waitpid

    def recorded(child: int, options: int) -> tuple[int, int]:
        result = wait(child, options)
        found.append(result[1])
        return result

    monkeypatch.setattr(os, "waitpid", recorded)
    return found


def ended(children: list[int]) -> int:
    """Wait for a child; return its exit code."""
    last = time.monotonic() + LONGEST_S
    while not children:
        assert time.monotonic() < last
        time.sleep(0.01)
    time.sleep(0.05)  # what the waiting thread does afterwards
    return os.waitstatus_to_exitcode(children[0])


def test_a_child_saves_while_its_parent_goes_on(
    tmp_path: Path, counter: Counter, children: list[int]
) -> None:
    here, there = os.pipe()
    os.set_inheritable(here, True)

    def save() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(there)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        (tmp_path / "saved").write_text(str(os.getpid()))
        counter.num_aot_artifacts_saved += 1

    compiled_model.save_in_child(save)
    assert not children
    (tmp_path / "go").touch()
    assert ended(children) == 0
    assert (tmp_path / "saved").read_text() != str(os.getpid())
    assert counter.num_aot_artifacts_saved == 0
    os.close(here)
    os.close(there)


@pytest.mark.parametrize("fails", ["silently", "loudly"])
def test_a_child_that_saves_nothing_is_told(
    fails: str, children: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def save() -> None:
        if fails == "loudly":
            raise ValueError("no space left")

    with caplog.at_level(logging.WARNING):
        compiled_model.save_in_child(save)
        assert ended(children) == 1
    assert "the next start compiles it again" in caplog.text


def test_a_child_that_hangs_is_ended(
    children: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled_model, "LIMIT_S", 0.2)
    with caplog.at_level(logging.WARNING):
        compiled_model.save_in_child(lambda: time.sleep(LONGEST_S))
        assert ended(children) == -signal.SIGALRM
    assert f"exit status {-signal.SIGALRM}" in caplog.text


ORPHAN = """
import os, time
from forgedsl_runtime.services.vllm.upstream import compiled_model

compiled_model.LIMIT_S = 0.5
compiled_model.save_in_child(lambda: time.sleep(1000))
os._exit(0)
"""


def test_a_child_that_hangs_keeps_its_limit_without_the_engine() -> None:
    command = [sys.executable, "-c", ORPHAN]
    # the output ends when the child, which has it too, has ended
    subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LONGEST_S)


def test_without_a_child_the_engine_saves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fork() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    saved: list[int] = []
    with caplog.at_level(logging.WARNING):
        compiled_model.save_in_child(lambda: saved.append(os.getpid()))
    assert saved == [os.getpid()]
    assert "without a child process: Resource temporarily unavailable" in caplog.text


class Compiled(nn.Module):
    saved = 0

    def save_aot_compiled_function(self) -> None:
        self.saved += 1


@pytest.mark.parametrize("off", [False, True])
def test_parts_that_vllm_compiles_are_saved_by_children(
    off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", str(int(off)))
    calls: list[Any] = []
    monkeypatch.setattr(compiled_model, "save_in_child", calls.append)
    model: Any = nn.Sequential(nn.Linear(1, 1), Compiled())
    compiled_model.save_aside(model)
    model[1].save_aot_compiled_function()
    assert (len(calls), model[1].saved) == ((0, 1) if off else (1, 0))
    assert not hasattr(model[0], "save_aot_compiled_function")
