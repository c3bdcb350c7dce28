"""Launcher `process`: several hosts that are processes of this machine, reached by address.

What several hosts change in a run can be had without a second machine: services placed on hosts,
process groups across them, the loss of one.
"""

from __future__ import annotations

from forgedsl.launchers.base import Launcher, signature

LAUNCHER = Launcher(
    signature=signature(
        "process",
        "hosts that are processes of this one",
        instead="`launcher = process`; `cluster { hosts = 3 }` says how many there are",
    ),
    most=None,
    one_machine=True,
)
