"""What this host has: GPUs, processors, memory. Nothing heavy is imported to find out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

MIB = 2**20


def detect_host() -> dict[str, Any]:
    """The fields of `cluster` for this one machine."""
    gpus = detect_gpus()
    return {
        "hosts": 1,
        "gpus": len(gpus),
        "gpu": gpus[0][0] if gpus else "",
        "gpu_memory": min((size for _, size in gpus), default=0),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "rdma": any(Path("/sys/class/infiniband").glob("*")),
    }


def detect_gpus() -> list[tuple[str, int]]:
    """(name, bytes of memory) of each GPU the driver shows; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line]
    return [(name.removeprefix("NVIDIA ").strip(), int(size) * MIB) for name, size in rows]
