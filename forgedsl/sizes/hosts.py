"""Hosts that a plan may use, and the memory of their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgedsl.records import dataclass, replace

ASSUMED = "assumed"
"""origin of a host that nobody described"""


@dataclass(frozen=True, slots=True)
class Host:
    """A host: default values for settings of `cluster` that the file does not set."""

    hosts: int = 1
    gpus: int = 8
    gpu: str | None = "H200"
    gpu_memory: int = 141 * 2**30
    cpus: int = 96
    memory: int = 2**40
    said: str = ASSUMED
    """origin, such as "this host", "assumed: --host 8xH200", "assumed: `cluster` of the file"."""
    calibration: Mapping[str, Any] | None = None
    """measured times and lengths (plan/calibration.py)"""


GPU_GIB = {
    "B300": 288, "B200": 180, "GB200": 185, "H200": 141, "H100": 80, "GH200": 96, "H20": 96,
    "A100": 80, "L40S": 48, "L4": 24, "A10": 24, "V100": 32, "4090": 24, "5090": 32, "MI300X": 192,
}  # fmt: skip
"""memory of GPUs by name, if it is not detected"""


def gpu_bytes(model: str | None) -> int:
    """Return the memory of a GPU in bytes, by its marketing name; 0 for an unknown one."""
    words = (model or "").upper().replace("-", " ").split()
    return next((GPU_GIB[word] for word in words if word in GPU_GIB), 0) * 2**30


def under(cluster: Mapping[str, Any], host: Host) -> Host:
    """Return the defaults for a `cluster`. If it has more hosts or GPUs than `host`, it is another
    machine, and its other settings are assumed."""
    if cluster.get("hosts", 1) > host.hosts or cluster.get("gpus", 0) > host.gpus:
        host = Host(calibration=host.calibration)
    named = gpu_bytes(cluster.get("gpu"))
    return replace(host, gpu_memory=named) if named not in (0, gpu_bytes(host.gpu)) else host
