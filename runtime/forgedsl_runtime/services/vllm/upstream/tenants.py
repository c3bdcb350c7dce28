"""Services that an engine serves besides the policy: adapters that it loads once and never swaps.

    folder in the layout of PEFT --begin--> a slot in vLLM's layers --faults--> what differs

A tenant without a folder answers with the base: its requests name no adapter. vLLM keys its prefix
cache by adapter, so no request finds keys and values of another adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forgedsl.adapters import PREFIX, WEIGHTS, B, read_adapter
from forgedsl_runtime.proofs import publication
from forgedsl_runtime.proofs.digest import Digests
from forgedsl_runtime.proofs.publication import Digest, Held
from forgedsl_runtime.services.vllm.upstream import adapter

SALT = "tenant"
"""part of the keys of the prefix cache; the policy has another one for each of its versions"""


class Tenants:
    """The tenants of an engine, each with the folder of its adapter (None: the base)."""

    def __init__(self, folders: Mapping[str, Path | None]) -> None:
        self._folders = {name: folder for name, folder in folders.items() if folder is not None}
        self._requests: dict[str, Any] = dict.fromkeys(folders)
        self._wanted: dict[str, dict[str, Digest]] = {}
        """by tenant: digests of its adapter as its folder has it, in the engine's dtype"""
        self._held: dict[str, adapter.HeldAdapter] = {}

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def use_base(self) -> bool:
        """True if a tenant answers with the base. vLLM's kernels for CPUs take a token without an
        adapter for one with that of the last slot (index -1), so that slot must stay empty."""
        return len(self._folders) < len(self._requests)

    @property
    def ranks(self) -> list[int]:
        """Return the rank of each adapter."""
        return [read_adapter(folder).rank for folder in self._folders.values()]

    def adapter(self, tenant: str) -> Any:
        """Return what vLLM's requests of a tenant name as their adapter; None for the base."""
        return self._requests[tenant]

    def begin(self, engine: Any) -> None:
        """Load all adapters into the layers of an engine."""
        for number, (name, folder) in enumerate(self._folders.items(), adapter.POLICY + 1):
            self._requests[name] = adapter.request(f"tenant {name}", number)
            weights, rank = _read(folder, engine.model_config.dtype), read_adapter(folder).rank
            self._wanted[name] = _digests(weights)
            engine.apply_model(partial(adapter.swap, weights=weights.items(), number=number))
            (self._held[name],) = engine.apply_model(
                partial(adapter.HeldAdapter, rank=rank, number=number)
            )

    def num_tensors(self, tenant: str) -> int:
        """Return the number of tensors of the adapter of a tenant."""
        return len(self._wanted[tenant])

    def faults(self, gather: Callable[[list[Held]], list[Held]]) -> dict[str, list[str]]:
        """Return, for each tenant with an adapter, how what the ranks hold differs from its folder.
        Layers without an adapter in the folder must be zero."""
        found = {}
        for name, held in self._held.items():
            parts, wanted = gather(held.take()), self._wanted[name]
            extra = {part.name for part in parts if part.name not in wanted and part.value}
            own = [part for part in parts if part.name in wanted]
            found[name] = publication.faults(wanted, own)
            found[name] += [f"{each} is not in its folder" for each in sorted(extra)]
        return found


def _read(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return A and B of each layer of the adapter in a folder, B times its scale, in `dtype`."""
    from safetensors.torch import load_file

    scale = read_adapter(folder).scale
    return {
        name.removeprefix(PREFIX): (value.float() * (scale if name.endswith(B) else 1.0)).to(dtype)
        for name, value in load_file(folder / WEIGHTS).items()
    }


def _digests(weights: Mapping[str, Tensor]) -> dict[str, Digest]:
    found = Digests()
    for value in weights.values():
        found.add(value)
    return {
        name: Digest(len(value), value.shape[1], each)
        for (name, value), each in zip(weights.items(), found.read(), strict=True)
    }
