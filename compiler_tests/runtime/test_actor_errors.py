"""What goes wrong in an actor reaches the caller, also where the error itself cannot be sent."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forgedsl.runtime.actors.base import ForgeActor


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
