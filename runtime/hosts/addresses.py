"""By which address the processes of a run reach each other.

A launcher tells each host which one it is dialled by; the names of machines are not asked, which
resolve to loopback in containers.
"""

from __future__ import annotations

import os
import socket

ADDRESS = "FORGEDSL_ADDRESS"
"""in the environment of a host's worker, and so of all processes on it"""
LOOPBACK = "127.0.0.1"


def own_address() -> str:
    """The address that processes of other hosts reach this one by."""
    return os.environ.get(ADDRESS, LOOPBACK)


def towards(other: str) -> str:
    """The address of this machine that `other` can dial."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing
        return str(probe.getsockname()[0])
