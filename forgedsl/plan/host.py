"""The hosts a plan may use: declared by the program, detected by `run`, or assumed.

Lint and plan assume one host of 8 x H200 where the program declares no `cluster`; `run` passes
what it detected. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from forgedsl.hir.ir import Auto, Program

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """`hosts` equal machines."""

    hosts: int = 1
    gpus: int = 8
    gpu: str = "H200"
    gpu_memory: int = 141 * GIB
    cpus: int = 96
    memory: int = 1024 * GIB
    rdma: bool = False

    @property
    def text(self) -> str:
        """One line for people, e.g. "1 host: 8 x H200 (141 GiB), 96 cpus, 1024 GiB"."""
        number = f"{self.hosts} hosts, each" if self.hosts > 1 else "1 host"
        gpus = f"{self.gpus} x {self.gpu} ({self.gpu_memory // GIB} GiB)" if self.gpus else "no GPU"
        return f"{number}: {gpus}, {self.cpus} cpus, {self.memory // GIB} GiB"


ASSUMED = Host()


def resolve_host(program: Program, detected: Host | Mapping[str, Any] | None) -> Host:
    """The program's own `cluster` over what was detected, over the assumed host."""
    base = detected if isinstance(detected, Host) else replace(ASSUMED, **_known(detected or {}))
    declared = program.singletons.get("cluster")
    if declared is None:
        return base
    return replace(base, **_known({k: v.value for k, v in declared.settings.items()}))


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(Host)}
    given = {k: v for k, v in values.items() if k in names}
    return {k: v for k, v in given.items() if v is not None and not isinstance(v, Auto)}
