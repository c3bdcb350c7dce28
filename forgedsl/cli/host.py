"""Detects GPUs, CPU cores and memory of this host, without heavy imports.

`host_of` reads `--host`: this host, or a described one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from forgedsl import surface

if TYPE_CHECKING:
    from forgedsl.sizes.hosts import Host

HERE = "here"


def host_of(text: str, command: str) -> Host:
    """Return the host to plan for; exit with 2 if `--host` is wrong."""
    from forgedsl.cli.overrides import UsageError, refuse

    try:
        return find_host(text)
    except UsageError as error:
        refuse(command, error)


def find_host(text: str) -> Host:
    """The host to plan for.

    Raises:
        UsageError: the text describes none, or the calibration cannot be read.
    """
    from forgedsl.cli.calibrate import calibration_path, read_calibration
    from forgedsl.cli.overrides import UsageError
    from forgedsl.plan.host import described_host
    from forgedsl.records import replace
    from forgedsl.sizes.hosts import Host

    host = Host(**detect_host(), said="this host") if text == HERE else described_host(text)
    if isinstance(host, str):
        named = surface.option("--host", text if surface.in_python() else "")
        raise UsageError(f"{named}: {host}")
    try:
        return replace(host, calibration=read_calibration(calibration_path()))
    except ValueError as error:
        raise UsageError(str(error)) from error


def detect_host() -> dict[str, Any]:
    """Return the fields of `cluster` for this machine."""
    from forgedsl.plan.gpus import detect_gpus

    gpus = detect_gpus()
    return {
        "hosts": 1,
        "gpus": len(gpus),
        "gpu": gpus[0][0] if gpus else "",
        "gpu_memory": min((size for _, size in gpus), default=0),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
