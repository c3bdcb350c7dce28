"""All launchers, in one tuple."""

from __future__ import annotations

import os

from forgedsl.launchers import kubernetes, local, process, slurm, ssh
from forgedsl.launchers.base import Launcher
from forgedsl.settings import Live, Signature

LAUNCHERS: tuple[Launcher, ...] = (
    local.LAUNCHER,
    process.LAUNCHER,
    slurm.LAUNCHER,
    ssh.LAUNCHER,
    kubernetes.LAUNCHER,
)
SIGNATURES: Live[Signature] = Live(lambda: {each.name: each.signature for each in LAUNCHERS})
"""call form of each launcher, for the schema"""


def launcher(name: str) -> Launcher:
    """Return the launcher of this name.

    Raises:
        LookupError: there is none.
    """
    for each in LAUNCHERS:
        if each.name == name:
            return each
    raise LookupError(
        f"there is no launcher {name}; there are {', '.join(each.name for each in LAUNCHERS)}"
    )


def carrier(name: str) -> Launcher:
    """Return the launcher that runs a job here. Inside of an allocation it is that scheduler's,
    even if the job names another, because manifests can be written for any scheduler.

    Raises:
        LookupError: there is no such launcher.
    """
    mine = launcher(name)
    if not mine.allocation or os.environ.get(mine.allocation):
        return mine
    inside = [each for each in LAUNCHERS if each.allocation and os.environ.get(each.allocation)]
    return inside[0] if inside else mine
