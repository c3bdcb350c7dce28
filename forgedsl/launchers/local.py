"""Launcher `local`: processes of this host, started by `forgec run` itself."""

from __future__ import annotations

from forgedsl.launchers.base import Launcher, signature

LAUNCHER = Launcher(
    signature=signature(
        "local", "processes of this host",
        instead="`launcher = local`; `procs` of a service sets the number of its processes",
    ),
    one_machine=True,
)  # fmt: skip
