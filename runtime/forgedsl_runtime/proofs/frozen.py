"""Proof of a frozen model: it holds, bit for bit, the weights in the folder of its model, or the
random weights that the trainer of this model begins with.

    service: digests of its weights --facts of setup--.
                                                       +--> `check`: `Frozen`, or a RunError
    controller: digests of the files in the folder ----'

An engine (a judge, say) tells digests of the parts of tensors that its ranks hold: `check_parts`.
Random weights are in no folder: trainer and frozen model draw them independently, and
`check_random` compares both.

The two sides read the folder independently. So a model that was loaded from another folder, in
part, or under wrong names ends the run before its first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from forgedsl.errors import RunError
from forgedsl_runtime.proofs import publication
from forgedsl_runtime.proofs.digest import Digests, digest, unsigned
from forgedsl_runtime.proofs.publication import Digest, Held

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
    """number of tensors that were compared: all, unless the files are larger than MOST_BYTES, or
    an engine has joined tensors"""

    def record(self, service: str) -> dict[str, Any]:
        """Return the line of proofs.jsonl."""
        return {"proof": "frozen", "service": service, **asdict(self)}


class Whole(NamedTuple):
    """Digest of a whole tensor, and its dtype by its name in torch, such as "bfloat16"."""

    digest: int
    dtype: str


class RandomWeights(NamedTuple):
    """Digests of the random weights of a service, in the dtype of its model."""

    model: str
    trained: bool
    digests: dict[str, Whole]


def check_random(made: Mapping[str, RandomWeights]) -> list[dict[str, Any]]:
    """Compare the random weights of frozen services with those of the trained service of the same
    model; return lines of proofs.jsonl. `made` is by service.

    Raises:
        RunError: they differ.
    """
    trained = {each.model: name for name, each in made.items() if each.trained}
    lines = []
    for name, each in made.items():
        if each.trained or each.model not in trained:
            continue
        like = trained[each.model]
        first = made[like].digests  # may also have a value head
        faults = [part for part, held in each.digests.items() if first.get(part) != held]
        if faults:
            raise RunError(
                f"the random weights of {name} are not those of {like}: "
                f"{publication.text(sorted(faults))}",
                remedy="this is a bug: please report it, with the .forge file",
            )
        count = len(each.digests)
        lines.append(
            {"proof": "frozen", "service": name, "like": like, "tensors": count, "proved": count}
        )
    return lines


def digests(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Whole]:
    """Return the digest of each tensor, by its name in files."""
    dtypes, found = {}, Digests()
    for name, value in weights:
        dtypes[name] = str(value.dtype).removeprefix("torch.")
        found.add(value)
    return {
        name: Whole(value, dtype)
        for (name, dtype), value in zip(dtypes.items(), found.read(), strict=True)
    }


def check(folder: Path, held: Mapping[str, Whole]) -> Frozen:
    """Compare the digests of a loaded model with the safetensors files in its folder, each tensor
    in the dtype in which the model has it.

    Raises:
        RunError: they differ.
    """
    where, size = _open(folder)
    chosen = _chosen(sorted(held.keys() & where.keys()), size)
    faults = [f"{name} is in the model, but not in these files" for name in held.keys() - where]
    faults += [
        f"{name} has other values in the model"
        for name in chosen
        if unsigned(int(digest(_read(where, name, held[name].dtype)))) != held[name].digest
    ]
    if faults:
        raise _error(folder, sorted(faults))
    return Frozen(folder=str(folder), tensors=len(held), proved=len(chosen))


def check_parts(folder: Path, held: Sequence[Held]) -> Frozen:
    """Compare what the ranks of an engine hold with the safetensors files in the folder of its
    model, each tensor in the dtype in which the engine has it. Tensors that the engine joins from
    several of a file, such as experts, have other names there; they are not compared.

    Raises:
        RunError: they differ.
    """
    where, size = _open(folder)
    dtypes = {part.name: part.dtype for part in held}
    published = {}
    for name in _chosen(sorted(dtypes.keys() & where.keys()), size):
        value = _read(where, name, dtypes[name])
        published[name] = Digest(
            len(value), value.numel() // len(value), unsigned(int(digest(value)))
        )
    faults = publication.faults(published, (part for part in held if part.name in published))
    if faults:
        raise _error(folder, faults)
    return Frozen(folder=str(folder), tensors=len(dtypes), proved=len(published))


def _open(folder: Path) -> tuple[dict[str, Any], int]:
    """Open the safetensors files of a folder: the file of each tensor, and their bytes in all."""
    from safetensors import safe_open

    files: dict[Path, Any] = {
        path: safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))
    }
    where = {name: file for file in files.values() for name in file.keys()}  # noqa: SIM118
    return where, sum(path.stat().st_size for path in files)


def _chosen(names: Sequence[str], size: int) -> Sequence[str]:
    """Return the tensors to read, of files of so many bytes in all."""
    return names[:: max(1, -(-size // MOST_BYTES))]


def _read(where: Mapping[str, Any], name: str, dtype: str) -> Tensor:
    import torch

    value: Tensor = where[name].get_tensor(name)
    return value.to(getattr(torch, dtype)) if value.is_floating_point() else value


def _error(folder: Path, faults: list[str]) -> RunError:
    return RunError(
        f"its weights are not those in {folder}: {publication.text(faults)}",
        remedy="check that no other process writes this folder, and that it holds one model; "
        "if both are true, report this as a bug",
    )
