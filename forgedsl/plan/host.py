"""The hosts a plan may use: declared by the program, detected by `run`, or assumed.

Lint and plan assume one host of 8 x H200 where the program declares no `cluster`; `run` passes
what it detected. Sizes are bytes.
"""

from __future__ import annotations

from typing import Any

from forgedsl.hir.context import Host
from forgedsl.hir.ir import Program
from forgedsl.records import fields, replace

__all__ = ["Host", "host_text", "resolve_host"]

GIB = 2**30


def host_text(host: Host) -> str:
    """One line for people, e.g. "1 host: 8 x H200 (141 GiB), 96 cpus, 1024 GiB"."""
    number = f"{host.hosts} hosts, each" if host.hosts > 1 else "1 host"
    gpus = f"{host.gpus} x {host.gpu} ({host.gpu_memory / GIB:.0f} GiB)" if host.gpus else "no GPU"
    return f"{number}: {gpus}, {host.cpus} cpus, {host.memory / GIB:.0f} GiB"


def resolve_host(program: Program, detected: Host | None) -> Host:
    """The program's own `cluster` over what was detected, over the assumed host."""
    base = detected or Host()
    declared = program.singletons.get("cluster")
    if declared is None:
        return base
    names = {field.name for field in fields(Host)}
    given: dict[str, Any] = {
        key: setting.value
        for key, setting in declared.settings.items()
        if key in names and setting.origin.layer != "default"
    }
    return replace(base, **given)
