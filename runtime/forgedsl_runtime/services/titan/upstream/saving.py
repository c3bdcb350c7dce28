"""Checkpoints of a trainer, written in the background if there is memory for a copy.

On GPUs the state of model, optimizer and scheduler is copied within GPU memory, which takes
milliseconds. A thread writes this copy; it has its own CUDA stream and process group. If the GPU is
full, the state is first copied to host memory. On CPUs, writing would compete with the next step
for cores, and a copy for memory, so the state is written at once. Each rank decides for itself.
"""

from __future__ import annotations

import contextlib
import copy
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import psutil
import torch
from torch import Tensor

ROOM = 1.25
"""free memory needed for a copy, relative to its size"""
WRITERS = 4
"""files that a rank writes concurrently from host memory"""


class Saver:
    """Writes checkpoints; made by all ranks together. `room(bytes on GPU, bytes on host)` says
    where a copy of a state of this size fits: "device", "host" or "" (nowhere)."""

    def __init__(self, manager: Any, device: torch.device) -> None:
        self._manager, self._device = manager, device
        self._group = torch.distributed.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def save(self, step: int) -> Future[Any]:
        """Begin the checkpoint of a step. When this returns, training may go on; the future is done
        when the checkpoint is written."""
        from torch.distributed.checkpoint import state_dict_saver
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        state = {name: part.state_dict() if hasattr(part, "state_dict") else part
                 for name, part in self._manager._flattened_model_states_sd().items()}  # fmt: skip
        folder = self._manager._create_checkpoint_id(step)
        where = self.room(*_num_bytes(state))
        if where == "device":
            stream: Any = None
            if self._device.type == "cuda":
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            kept = _copied(state)
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
            return self._thread.submit(self._write, kept, folder, stream)
        if where == "host":
            found: Any = state_dict_saver.async_save(
                state,
                storage_writer=FileSystemWriter(folder, thread_count=WRITERS),
                process_group=self._group,
            )
            written: Future[Any] = found
            return written
        self._write(state, folder, None)
        written = Future()
        written.set_result(None)
        return written

    def room(self, on_gpu: int, on_host: int) -> Literal["device", "host", ""]:
        if self._device.type == "cpu":
            return ""
        host = psutil.virtual_memory().available
        # Offloaded tensors are copied within host memory.
        if ROOM * on_gpu < torch.cuda.mem_get_info()[0] and ROOM * on_host < host:
            return "device"
        return "host" if ROOM * (on_gpu + on_host) < host else ""

    def _write(self, state: dict[str, Any], folder: str, stream: Any) -> None:
        from torch.distributed.checkpoint import state_dict_saver

        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            state_dict_saver.save(state, checkpoint_id=folder, process_group=self._group)


def _num_bytes(state: Any) -> tuple[int, int]:
    """Return the bytes of this rank's shards in a nested state: on its GPU, and on the host."""
    if isinstance(state, Tensor):
        here: Any = state.to_local() if hasattr(state, "to_local") else state
        return (0, here.nbytes) if here.device.type == "cpu" else (here.nbytes, 0)
    parts = [_num_bytes(part) for part in state.values()] if isinstance(state, dict) else []
    return sum(gpu for gpu, _ in parts), sum(host for _, host in parts)


def _copied(state: Any) -> Any:
    """Copy a nested state; tensors stay on their devices."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: _copied(part) for name, part in state.items()}
    return copy.deepcopy(state)
