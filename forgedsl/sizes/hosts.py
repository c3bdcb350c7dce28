"""The machines that a plan may use, and the memory of their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgedsl.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class Host:
    """The machine a plan may use: what `cluster` says where the file is silent."""

    hosts: int = 1
    gpus: int = 8
    gpu: str | None = "H200"
    gpu_memory: int = 141 * 2**30
    cpus: int = 96
    memory: int = 2**40
    said: str = "assumed"
    """who says so, e.g. "this host", "assumed: --host 8xH200", "assumed: `cluster` of the file"."""
    calibration: Mapping[str, Any] | None = None
    """what runs took on devices (plan/calibration.py)"""


GPU_GIB = {
    "B300": 288, "B200": 180, "GB200": 185, "H200": 141, "H100": 80, "GH200": 96, "H20": 96,
    "A100": 80, "L40S": 48, "L4": 24, "A10": 24, "V100": 32, "4090": 24, "5090": 32, "MI300X": 192,
}  # fmt: skip
"""memory of a GPU, where nothing says more"""


def gpu_bytes(model: str | None) -> int:
    """Memory of a GPU by its marketing name; 0 for an unknown one."""
    words = (model or "").upper().replace("-", " ").split()
    return next((GPU_GIB[word] for word in words if word in GPU_GIB), 0) * 2**30


def under(cluster: Mapping[str, Any], host: Host) -> Host:
    """The host that a `cluster` leaves open. With more hosts or GPUs than `host` it is another
    machine, and what it does not say is assumed."""
    if cluster.get("hosts", 1) > host.hosts or cluster.get("gpus", 0) > host.gpus:
        host = Host(calibration=host.calibration)
    named = gpu_bytes(cluster.get("gpu"))
    return replace(host, gpu_memory=named) if named not in (0, gpu_bytes(host.gpu)) else host
