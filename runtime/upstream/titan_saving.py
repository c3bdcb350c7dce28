"""Checkpoints of a trainer, written while it goes on where there is room for a copy.

On GPUs the state of model, optimizer and scheduler is copied to the host's memory and written from
there on a thread, by a process group of its own; on CPUs writing would take the cores of the next
step, and a copy its memory, so it is written at once. Each rank decides for itself.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import psutil
import torch
from torch import Tensor

WRITERS = 4
"""files that a rank writes at a time"""
ROOM = 1.25
"""of the bytes of a copy, that the host has to have free for one"""


class Saver:
    """`copies` is whether to write beside training; made by all ranks together."""

    def __init__(self, manager: Any, device: torch.device) -> None:
        self._manager = manager
        self.copies = device.type != "cpu"
        self._group = torch.distributed.new_group(backend="gloo")

    def save(self, step: int) -> Future[Any]:
        """Begin the checkpoint of a step; the state may change when this returns, and the future
        is done when it is written."""
        from torch.distributed.checkpoint import state_dict_saver
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        state = self._manager._flattened_model_states_sd()
        folder = self._manager._create_checkpoint_id(step)
        if self.copies and ROOM * _num_bytes(state) < psutil.virtual_memory().available:
            found: Any = state_dict_saver.async_save(
                state,
                storage_writer=FileSystemWriter(folder, thread_count=WRITERS),
                process_group=self._group,
            )
            written: Future[Any] = found
            return written
        state_dict_saver.save(state, checkpoint_id=folder, process_group=self._group)
        written = Future()
        written.set_result(None)
        return written


def _num_bytes(state: Any) -> int:
    """Of the tensors of a nested state, this rank's shards."""
    if isinstance(state, Tensor):
        here: Any = state.to_local() if hasattr(state, "to_local") else state
        return int(here.nbytes)
    if hasattr(state, "state_dict"):
        state = state.state_dict()
    return sum(map(_num_bytes, state.values())) if isinstance(state, dict) else 0
