"""GPUs of this machine, as nvidia-smi lists them: nothing of the stack is imported."""

from __future__ import annotations

import subprocess

from forgedsl.plan.host import gpu_mask

MIB = 2**20


def detect_gpus() -> list[tuple[str, int]]:
    """Return (name, bytes of memory) of each visible GPU; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(",", 2) for line in done.stdout.splitlines() if line.count(",") > 1]
    found = [(name.removeprefix("NVIDIA ").strip(), int(size) * MIB) for name, size, _ in rows]
    uuids = [uuid.strip() for *_, uuid in rows]
    mask = gpu_mask()
    return found if mask is None else [gpu for word in mask for gpu in _shown(word, found, uuids)]


def _shown(word: str, found: list[tuple[str, int]], uuids: list[str]) -> list[tuple[str, int]]:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES means: an index, or a prefix of a
    UUID."""
    if word.startswith("MIG-"):  # a MIG slice; the driver lists only whole GPUs
        return found[:1]
    if word.isdigit():
        return found[int(word) : int(word) + 1]
    return [gpu for gpu, uuid in zip(found, uuids, strict=True) if uuid.startswith(word)][:1]
