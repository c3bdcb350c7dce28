"""Pack all stores (replay buffers) of a run into one file of a checkpoint.

Store.arrays() of each --packed--> replay.npz --unpack--> Store.load()
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forgedsl.errors import RunError
from forgedsl.runs.checkpoints import REPLAY
from forgedsl_runtime.operations.base import Store


def packed(buffers: Mapping[str, Store]) -> bytes | None:
    """Return the content of the file; None without buffers."""
    if not buffers:
        return None
    file = io.BytesIO()
    arrays = {
        f"{n}/{key}": a for n, buffer in buffers.items() for key, a in buffer.arrays().items()
    }
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(data: bytes | None, buffers: Mapping[str, Store], held: Mapping[str, int]) -> list[str]:
    """Fill buffers from the file of a checkpoint; `held` is the number of groups of each. Returns
    the names of buffers whose fields have changed since; they stay empty.

    Raises:
        RunError: the file is missing or damaged.
    """
    wanted = [name for name in buffers if held.get(name)]
    if not wanted:
        return []
    try:
        with np.load(io.BytesIO(data or b"")) as file:
            found = {name: _parts_of(file, name) for name in wanted}
            full = {name: buffers[name].load(found[name]) for name in wanted}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"the file {REPLAY} of the checkpoint, with {sum(held.values())} groups of "
            f"{', '.join(wanted)}, " + ("cannot be read" if data else "is missing"),
            remedy="restore the file, or start a new run",
        ) from error
    return [name for name in wanted if not full[name]]


def _parts_of(found: Mapping[str, NDArray[Any]], head: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(f"{head}/"): found[k] for k in found if k.startswith(f"{head}/")}
