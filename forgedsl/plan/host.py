"""The hosts that a plan may use: declared by the program, detected by the command, or assumed.

If the program declares no `cluster`, lint and the Python API assume one host of 8 x H200. Commands
pass this host, or the one that `--host` describes. Sizes are in bytes.
"""

from __future__ import annotations

import os
import re
from typing import Any

from forgedsl import surface
from forgedsl.ir.program import Program
from forgedsl.launchers import registry
from forgedsl.launchers.base import Launcher
from forgedsl.records import fields, replace
from forgedsl.sizes.hosts import GPU_GIB, Host, gpu_bytes, under

__all__ = ["Host", "described_host", "gpu_mask", "host_text", "resolve_host"]

GIB = 2**30
ASKED = ("assumed: --host ", "assumed: host=")
"""prefixes of the origin of a host that the caller describes"""
DESCRIBED = ("hosts", "gpus", "gpu", "gpu_memory")
"""fields that `--host` sets; cores and main memory stay those of the file"""
WITHOUT_CUDA = ("MI300X",)
"""GPUs with known sizes that this version does not support"""
WITH_CUDA = tuple(name for name in GPU_GIB if name not in WITHOUT_CUDA)


def has_no_cuda(model: str) -> bool:
    """True for the marketing name of a GPU that this version does not support."""
    return not set(model.upper().replace("-", " ").split()).isdisjoint(WITHOUT_CUDA)


def host_text(host: Host) -> str:
    """Return a line: "1 host: 8 x H200 (141 GiB), 96 cpus, 1024 GiB (assumed: --host 8xH200)"."""
    number = f"{host.hosts} hosts, each" if host.hosts > 1 else "1 host"
    gpus = f"{host.gpus} x {host.gpu} ({host.gpu_memory / GIB:.0f} GiB)" if host.gpus else "no GPU"
    return f"{number}: {gpus}, {host.cpus} cpus, {host.memory / GIB:.0f} GiB ({host.said})"


def gpu_mask() -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES (`4`, `GPU-8d...`); None: all GPUs are visible.

    The plan's GPU 0 is the first entry. As in CUDA, the first negative number ends the list.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    end = next((i for i, word in enumerate(words) if not word or word[0] == "-"), len(words))
    return words[:end]


def launcher_of(program: Program) -> Launcher:
    """Return the launcher that starts the processes."""
    return registry.launcher(program.singletons["launcher"].settings["value"].value.name)


def resolve_host(program: Program, detected: Host | None) -> Host:
    """Return the host to plan for: `cluster` of the program, else the detected, else the assumed
    host. `--host` overrides `cluster` in the file or a profile, and `--set cluster...` overrides
    both."""
    base = detected or Host()
    declared = program.singletons.get("cluster")
    if declared is None:
        return base
    names = {field.name for field in fields(Host)}
    given: dict[str, Any] = {
        key: setting.value
        for key, setting in declared.settings.items()
        if key in names and setting.origin.layer != "default"
        and not (key in DESCRIBED and base.said.startswith(ASKED)
                 and setting.origin.layer not in ("set", "set-file"))
    }  # fmt: skip
    if not given:
        return base
    origins = [declared.settings[key].origin for key in given]
    details = {"`cluster` of the file" if o.span is not None and o.layer in ("file", "module")
               else o.detail for o in origins}  # fmt: skip
    splits = launcher_of(program).splits
    sizes = {key: size for key, size in given.items() if not (splits and key == "hosts")}
    asked = [base.said.removeprefix("assumed: ")] if base.said.startswith(ASKED) else []
    who = ", ".join([*asked, *sorted(details)])
    found = replace(under(sizes, base), **given, said=f"assumed: {who}")
    if not splits:
        return found
    shared = {name: max(1, getattr(found, name) // found.hosts) for name in ("cpus", "memory")}
    shared["gpus"] = found.gpus // found.hosts
    return replace(found, **{k: part for k, part in shared.items() if k not in given})


def described_host(text: str) -> Host | str:
    """Parse `--host`; return the host, or a message about the mistake.

    Example:
        described_host("2x8xH100").gpus == 8
        described_host("cpu").gpus == 0
    """
    shown = f"assumed: {surface.option('--host', text)}"
    if text == "cpu":
        return Host(gpus=0, gpu=None, gpu_memory=0, said=shown)
    found = re.fullmatch(r"(?:(\d+)x)?(\d+)x([A-Za-z]\w*|\d{4})", text)
    if found is None or "0" in found.groups():
        return f"`{text}` is not a host; write here, cpu, 8xH200, or 2x8xH200 for two hosts"
    hosts, gpus, gpu = int(found[1] or 1), int(found[2]), found[3].upper()
    there = ", ".join(WITH_CUDA)
    if has_no_cuda(gpu):
        return f"`{gpu}` is not supported, because it has no CUDA; supported are {there}"
    if not gpu_bytes(gpu):
        return f"unknown GPU `{gpu}`; known are {there}"
    return Host(hosts=hosts, gpus=gpus, gpu=gpu, gpu_memory=gpu_bytes(gpu), said=shown)
