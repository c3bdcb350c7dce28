"""Usage events: memory of the processes of each service, memory and load of GPUs."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forgedsl_runtime import usage
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.usage import MIB, Usage

SIZE = 64 * MIB
HOLDS = f"import sys; held = b'x' * {SIZE}; print(flush=True); sys.stdin.read()"
SMI = """#!/bin/sh
echo "0, GPU-aa, 1024, 93"
echo "1, GPU-bb, 2048, 7"
echo "2, GPU-cc, [N/A], [N/A]"
"""


def test_memory_is_that_of_the_processes_that_were_told() -> None:
    events = EventLog()
    watched = Usage(events, gpus=False)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert watched.memory() == {}
        events.emit("process.start", service="trainer", mesh="trainer", pid=process.pid)
        events.emit("process.start", service="elsewhere", mesh="elsewhere", pid=os.getpid())
        found = watched.memory()
        process.stdin.close()
    assert found.keys() == {"trainer"}
    assert found["trainer"] > SIZE
    assert watched.memory() == {}


@pytest.mark.parametrize(
    ("mask", "indices"), [(None, [0, 1]), ("1", [1]), ("GPU-aa", [0]), ("", [])]
)
def test_gpus_are_those_that_the_run_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: str | None, indices: list[int]
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    found = Usage(EventLog(), gpus=True).gpus()
    assert [gpu["index"] for gpu in found] == indices
    known = {0: (1024 * MIB, 0.93), 1: (2048 * MIB, 0.07)}
    assert [(gpu["memory"], gpu["load"]) for gpu in found] == [known[i] for i in indices]


@pytest.mark.parametrize("script", ["exit 9", "echo no numbers"])
def test_a_driver_that_does_not_answer_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Usage(EventLog(), gpus=True).gpus() == []


def test_samples_are_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "EVERY", 0.01)
    seen, events = [], EventLog()
    events.subscribe(seen.append)

    async def some() -> None:
        task = asyncio.create_task(Usage(events, gpus=False).watch())
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(some())
    assert [(e["kind"], e["memory"], e["gpus"]) for e in seen[:3]] == 3 * [("usage", {}, [])]
