"""What goes wrong in an actor reaches the caller, also where the error itself cannot be sent."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from monarch.actor import ActorError

from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.upstream.monarch import cause_of


class HoldsALock(Exception):
    """An error that cannot be pickled, as those of torch.compile."""

    def __init__(self) -> None:
        super().__init__("no graph for this block")
        self.lock = threading.Lock()


def test_an_error_that_cannot_be_pickled_is_told_by_its_text() -> None:
    def work() -> None:
        raise HoldsALock

    actor = ForgeActor.__new__(ForgeActor)  # without a mesh, whose rank __init__ asks for
    actor._worker = ThreadPoolExecutor(1)
    with pytest.raises(RuntimeError, match="HoldsALock: no graph for this block") as caught:
        asyncio.run(actor.run(work))
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


CUDA = """CUDA error: an illegal memory access was encountered
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""


def test_all_lines_of_an_error_are_told() -> None:
    def step() -> None:
        raise RuntimeError(CUDA)

    with pytest.raises(RuntimeError) as caught:
        step()
    assert cause_of(ActorError(caught.value)) == (
        "RuntimeError: CUDA error: an illegal memory access was encountered "
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    )


def test_an_error_without_frames_is_told_by_its_last_line() -> None:
    assert cause_of(RuntimeError("supervision\n\nkilled by signal 9\n")) == "killed by signal 9"
    assert cause_of(RuntimeError()) == "RuntimeError"
