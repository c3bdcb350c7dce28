"""All launchers, in one tuple."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.launchers import kubernetes, local, process, slurm
from forgedsl.launchers.base import Launcher
from forgedsl.settings import Signature

LAUNCHERS: tuple[Launcher, ...] = (
    local.LAUNCHER,
    process.LAUNCHER,
    slurm.LAUNCHER,
    kubernetes.LAUNCHER,
)


def launcher(name: str) -> Launcher:
    """The launcher of this name.

    Raises:
        LookupError: there is none.
    """
    for each in LAUNCHERS:
        if each.name == name:
            return each
    raise LookupError(f"no launcher {name}; there are {', '.join(each.name for each in LAUNCHERS)}")


class Signatures(Mapping[str, Signature]):
    """How each is written, for the schema."""

    def __getitem__(self, name: str) -> Signature:
        for each in LAUNCHERS:
            if each.name == name:
                return each.signature
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in LAUNCHERS)

    def __len__(self) -> int:
        return len(LAUNCHERS)
