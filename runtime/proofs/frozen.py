"""Proof of a frozen model: it holds, bit for bit, the weights in the folder of its model.

    service: digests of its weights --facts of setup--.
                                                       +--> `check`: `Frozen`, or a RunError
    controller: digests of the files in the folder ----'

The two sides read the folder independently. So a model that was loaded from another folder, in
part, or under wrong names ends the run before its first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from forgedsl.errors import RunError
from forgedsl.runtime.proofs.digest import Digests, digest, unsigned
from forgedsl.runtime.proofs.publication import text

MOST_BYTES = 1 << 30
"""approximate limit of the bytes of files that the controller reads: 1 GiB takes a CPU some 4 s in
bf16. Of larger models it reads every second tensor, every third, and so on"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Result of comparing a frozen model with its folder."""

    folder: str
    tensors: int
    """number of tensors that the model holds"""
    proved: int
    """number of tensors that were compared: all, unless the files are larger than MOST_BYTES"""

    def record(self, service: str) -> dict[str, Any]:
        """Return the line of proofs.jsonl."""
        return {"proof": "frozen", "service": service, **asdict(self)}


def digests(weights: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """Return the digest of each tensor, by its name in files."""
    names, found = [], Digests()
    for name, value in weights:
        names.append(name)
        found.add(value)
    return dict(zip(names, found.read(), strict=True))


def check(folder: Path, held: Mapping[str, int], dtype: str) -> Frozen:
    """Compare the digests of a loaded model, whose floating-point weights are of `dtype` (a name
    in torch, such as "bfloat16"), with the safetensors files in its folder.

    Raises:
        RunError: they differ.
    """
    import torch
    from safetensors import safe_open

    files: dict[Path, Any] = {
        path: safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))
    }
    where = {name: file for file in files.values() for name in file.keys()}  # noqa: SIM118
    names = sorted(held.keys() & where.keys())
    read = sum(path.stat().st_size for path in files)
    chosen = names[:: max(1, -(-read // MOST_BYTES))]
    faults = [f"{name} is in the model, but not in these files" for name in held.keys() - where]
    for name in chosen:
        value = where[name].get_tensor(name)
        value = value.to(getattr(torch, dtype)) if value.is_floating_point() else value
        if unsigned(int(digest(value))) != held[name]:
            faults.append(f"{name} has other values in the model")
    if faults:
        raise RunError(
            f"its weights are not those in {folder}: {text(sorted(faults))}",
            remedy="check that no other process writes this folder, and that it holds one model; "
            "if both are true, report this as a bug",
        )
    return Frozen(folder=str(folder), tensors=len(held), proved=len(chosen))
