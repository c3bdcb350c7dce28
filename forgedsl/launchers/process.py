"""Launcher `process`: several hosts that are processes of this machine, reached by address.

It shows the behaviour of several hosts on one machine: services placed on hosts, process groups
across hosts, the loss of a host.
"""

from __future__ import annotations

from forgedsl.launchers.base import Launcher, signature

LAUNCHER = Launcher(
    signature=signature(
        "process",
        "hosts simulated by processes of this machine",
        instead="`launcher = process`; `cluster { hosts = 3 }` sets the number of hosts",
    ),
    max_hosts=None,
    one_machine=True,
)
