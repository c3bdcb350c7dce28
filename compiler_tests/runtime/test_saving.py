"""Checkpoints that are written while training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader

from compiler_tests.runtime.fake_endpoints import FakeEndpoints, drive, job
from compiler_tests.runtime.test_controller_ends import failing, later
from forgedsl_runtime.endpoints import CheckpointError
from forgedsl_runtime.services.titan.upstream.saving import Saver

STEP, WRITING = 10.0, 25.0


class Beside(FakeEndpoints):
    """Services whose checkpoints are written beside what comes next."""

    async def save(self, step, controller_state, taken, replay=None):
        taken.set()
        return await super().save(step, controller_state, taken, replay)


def services(the_job: Any, **more: Any) -> Beside:
    times = {"step": STEP, "save": WRITING}
    return Beside(the_job, latency=lambda op: times.get(op, 0.0), **more)


def test_steps_go_on_while_a_checkpoint_is_written() -> None:
    the_job = job(steps=3, checkpoint={"every": 1})
    _, events = drive(the_job, services(the_job))
    kinds = ("step.end", "checkpoint.saved")
    order = [(e["kind"], e["step"]) for e in events if e["kind"] in kinds]
    assert order[:3] == [("step.end", 1), ("step.end", 2), ("checkpoint.saved", 1)]
    saved = [e for e in events if e["kind"] == "checkpoint.saved"]
    assert [(e["seconds"], e["paused"]) for e in saved] == [(WRITING, 0.0)] * 3


def test_a_run_ends_when_its_last_checkpoint_is_whole() -> None:
    the_job = job(steps=2)
    endpoints = services(the_job)
    outcome, _ = drive(the_job, endpoints)
    assert [state["step"] for state in endpoints.saved] == [2]
    assert outcome.checkpoint == "checkpoints/step-2"


def test_one_checkpoint_is_written_at_a_time() -> None:
    the_job = job(steps=5, checkpoint={"every": 1})
    writing: list[int] = []

    class Counting(Beside):
        async def save(self, step, controller_state, taken, replay=None):
            assert not writing
            writing.append(step)
            path = await super().save(step, controller_state, taken, replay)
            writing.remove(step)
            return path

    endpoints = Counting(the_job, latency=lambda op: {"step": 1.0, "save": 9.0}.get(op, 0.0))
    drive(the_job, endpoints)
    assert [state["step"] for state in endpoints.saved] == [1, 2, 3, 4, 5]


def test_an_interrupt_waits_for_what_is_written_and_writes_the_newest() -> None:
    the_job = job(steps=50, checkpoint={"every": 2})
    endpoints = services(the_job)
    stop = later(3 * STEP + 5, lambda controller: controller.interrupt())
    outcome, _ = drive(the_job, endpoints, prepare=stop)
    assert [state["step"] for state in endpoints.saved] == [2, outcome.step]
    assert outcome.checkpoint == f"checkpoints/step-{outcome.step}"


def test_a_disk_that_is_full_ends_the_run_though_training_went_on() -> None:
    the_job = job(steps=50, checkpoint={"every": 2})
    endpoints = services(the_job, fail=failing("save", CheckpointError("disk full")))
    with pytest.raises(CheckpointError, match="disk full"):
        drive(the_job, endpoints)
    assert 2 <= len(endpoints.trained) < 50


class Manager:
    """What torchtitan's manager is asked for."""

    def __init__(self, folder: Path, weight: torch.Tensor) -> None:
        self._folder, self._weight = folder, weight

    def _flattened_model_states_sd(self) -> dict[str, Any]:
        return {"weight": self._weight, "train_state": {"version": torch.tensor(7)}}

    def _create_checkpoint_id(self, step: int) -> str:
        return str(self._folder / f"step-{step}")


@pytest.mark.parametrize("where", ["device", "host", ""])
def test_a_checkpoint_holds_the_state_of_its_step(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        weight = torch.arange(100_000.0)
        saver = Saver(Manager(tmp_path, weight), torch.device("cpu"))
        monkeypatch.setattr(saver, "room", lambda *num_bytes: where)
        written = saver.save(3)
        weight.zero_()
        written.result(60)
        found = {"weight": torch.empty(100_000), "train_state": {"version": torch.tensor(0)}}
        state_dict_loader.load(found, checkpoint_id=str(tmp_path / "step-3"))
    finally:
        dist.destroy_process_group()
    assert torch.equal(found["weight"], torch.arange(100_000.0))
    assert int(found["train_state"]["version"]) == 7
