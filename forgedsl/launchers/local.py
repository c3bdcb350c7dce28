"""Launcher `local`: processes of this host, started by `forgec run` itself."""

from __future__ import annotations

from forgedsl.launchers.base import Launcher, signature

LAUNCHER = Launcher(
    signature=signature(
        "local", "processes of this host",
        instead="`launcher = local`; `procs` of a service says how many it has",
    ),
    one_machine=True,
)  # fmt: skip
