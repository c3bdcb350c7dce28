"""Plants a fault into a publication of a run: FORGE_PLANT names it, FORGE_PLANT_RANK the rank.

Python imports a module of this name in every process that has its folder on PYTHONPATH. Faults are
made in the sender's buffer after the digests were taken, as a wrong copy would make them. The fault
`another_folder` lets a frozen model load the folder FORGE_PLANT_FOLDER.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any

BASE = "forgedsl_runtime.transports.base"
FROZEN = "forgedsl_runtime.services.titan.frozen"
PUBLICATION = 3
"""version 2: versions 0 and 1 arrive whole"""
FAULTS = (
    "not_sent",
    "stale_buffer",
    "wrong_shard",
    "one_bit",
    "cast_twice",
    "swapped",
    "sent_twice",
)


def pair(base: Any, made: Any, entries: Any) -> tuple[Any, Any]:
    """Two tensors of one shape whose values differ."""
    for i, a in enumerate(entries):
        for b in entries[i + 1 :]:
            x, y = base.view(made, a), base.view(made, b)
            if a.shape == b.shape and len(a.shape) > 1 and not bool((x == y).all()):
                return x, y
    raise LookupError("no two tensors of one shape")


def spoil(fault: str, base: Any, sender: Any, turn: int) -> None:
    """Change the buffer of this turn in the way that `fault` names, if this rank keeps one."""
    import torch

    rank = sender._ranks.rank
    keeps = rank < len(sender._kept) and sender._kept[rank][0]
    if not keeps or rank != int(os.environ.get("FORGE_PLANT_RANK", "0")):
        return
    entries = sender._kept[rank][0]
    made, before = sender._made[turn][0], sender._made[1 - turn][0]
    matrix = next(entry for entry in entries if len(entry.shape) > 1)
    x = base.view(made, matrix)
    match fault:
        case "not_sent":  # the values of the version before stay in the buffer
            x.copy_(base.view(before, matrix))
        case "stale_buffer":
            made.copy_(before)
        case "wrong_shard":
            half = len(x) // 2
            x[half : 2 * half].copy_(x[:half].clone())
        case "one_bit":
            x.view(torch.uint8).flatten()[5] ^= 1
        case "cast_twice":
            other = torch.float16 if x.dtype == torch.float32 else torch.float8_e4m3fn
            x.copy_(x.to(other).to(x.dtype))
        case "swapped":
            a, b = pair(base, made, entries)
            kept = a.clone()
            a.copy_(b)
            b.copy_(kept)
        case "sent_twice":  # one tensor in the place of another
            a, b = pair(base, made, entries)
            b.copy_(a)
        case _:
            raise LookupError(f"no fault is named {fault}; there are {', '.join(FAULTS)}")
    if made.is_cuda:
        torch.cuda.synchronize()


def patch(base: Any) -> None:
    """Let `Sender.publish` plant the fault behind its own work."""
    fault = os.environ["FORGE_PLANT"]
    publish = base.Sender.publish

    def planted(self: Any, state: Any, version: int, probe: Any = None) -> Any:
        turn = self._turn
        found = publish(self, state, version, probe)
        if self._published == PUBLICATION:
            spoil(fault, base, self, turn)
        return found

    base.Sender.publish = planted


def load_another_folder(module: Any) -> None:
    """Let frozen models take their weights from another folder."""
    setup = module.ReferenceModel._setup

    def planted(self: Any, *args: Any) -> Any:
        self.folder = Path(os.environ["FORGE_PLANT_FOLDER"])
        return setup(self, *args)

    module.ReferenceModel._setup = planted


class Finder(importlib.abc.MetaPathFinder):
    """Patches one module when it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        wrong_folder = os.environ["FORGE_PLANT"] == "another_folder"
        if name != (FROZEN if wrong_folder else BASE):
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            (load_another_folder if wrong_folder else patch)(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("FORGE_PLANT"):
    sys.meta_path.insert(0, Finder())
