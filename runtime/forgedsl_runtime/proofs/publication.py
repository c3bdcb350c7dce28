"""Proof of a publication: an engine holds, bit for bit, what the trainer published.

    trainer: digest of each tensor --manifest--.
                                               +--> `faults`: nothing, or what is wrong
    engine: digests of the parts it holds -----'

Parts are compared by name and place. So an error names the tensor that is missing, or that comes
from another layer, an older version or another rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

NAMED = 4
"""number of tensors that a message names"""


class Digest(NamedTuple):
    """Digest of a whole tensor, modulo 2^64, and its shape as [rows, columns]."""

    rows: int
    columns: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A part of a tensor that one rank of an engine holds, by its place in the whole."""

    name: str
    row: int
    rows: int
    column: int
    columns: int
    value: int
    dtype: str
    """name in torch, such as "bfloat16\""""
    where: str
    """name in the engine"""

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.row, self.rows, self.column, self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Result of loading published weights into an engine."""

    gap: float | None = None
    """largest difference to the log-probs of the manifest's probe, if it has one"""
    faults: tuple[str, ...] = ()
    proved: int = 0
    """tensors that the engine holds bit for bit; 0 if this publication is not proved"""
    placeless: tuple[str, ...] = ()
    """tensors that have no known place in this engine, so that only a probe can check them"""
    was_random: bool = False
    """True if the engine had random weights before, which these have replaced"""
    base: int = 0
    """number of base weights that were compared with the trainer's at this load, and equal them bit
    for bit; 0 if none were compared (they are compared only when the first adapter arrives)"""
    base_faults: tuple[str, ...] = ()


def arrival(published: Mapping[str, Digest], held: Iterable[Held], places: set[str]) -> Arrival:
    """Compare published weights with those that all ranks of an engine hold. `places` are the
    names of published tensors for which the engine has a parameter."""
    here = {name: whole for name, whole in published.items() if name in places}
    found = faults(here, held)
    return Arrival(
        faults=tuple(found),
        proved=len(here) if not found else 0,
        placeless=tuple(sorted(published.keys() - places)),
    )


def with_base(found: Arrival, base: Mapping[str, Digest], held: Iterable[Held]) -> Arrival:
    """Add to the arrival of an adapter the comparison of the base weights."""
    wrong = faults(base, held)
    return replace(found, base=0 if wrong else len(base), base_faults=tuple(wrong))


def faults(published: Mapping[str, Digest], held: Iterable[Held]) -> list[str]:
    """Return what differs between published weights and those of all ranks of an engine: one
    sentence for each tensor."""
    parts: dict[str, list[Held]] = defaultdict(list)
    for part in held:
        parts[part.name].append(part)
    found = [f"{name} is not in the engine" for name in published if name not in parts]
    found += [
        f"{name} was not published, but the engine has it as {parts[name][0].where}"
        for name in parts
        if name not in published
    ]
    for name, whole in published.items():
        if name in parts and (fault := _fault(name, whole, parts[name])):
            found.append(fault)
    return found


def text(found: list[str]) -> str:
    """Return the faults as a part of a message."""
    named = "; ".join(found[:NAMED])
    return named if len(found) <= NAMED else f"{named}; and {len(found) - NAMED} more"


def _fault(name: str, whole: Digest, parts: list[Held]) -> str:
    by_place: dict[tuple[int, int, int, int], set[int]] = defaultdict(set)
    for part in parts:
        by_place[part.place].add(part.value)
    if any(len(values) > 1 for values in by_place.values()):
        return f"{name} differs between copies in the engine ({parts[0].where})"
    covered = sum(rows * columns for _, rows, _, columns in by_place)
    if covered != whole.rows * whole.columns:
        have = covered / (whole.rows * whole.columns)
        return f"{name}: the engine holds {have:.0%} of its elements ({parts[0].where})"
    total = sum(value for values in by_place.values() for value in values)
    if (total - whole.value) % 2**64:
        return f"{name} has other values in the engine ({parts[0].where})"
    return ""
