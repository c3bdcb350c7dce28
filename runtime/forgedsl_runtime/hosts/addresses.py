"""Addresses by which the processes of a run reach each other.

A launcher tells each host its own address. Host names are not looked up, since they resolve to
loopback in containers.
"""

from __future__ import annotations

import os
import socket

ADDRESS = "FORGEDSL_ADDRESS"
"""environment variable of a host's worker, inherited by all processes on the host"""
LOOPBACK = "127.0.0.1"


def own_address() -> str:
    """Return the address at which other hosts reach this process."""
    return os.environ.get(ADDRESS, LOOPBACK)


def address_reachable_from(other: str) -> str:
    """Return the address of this machine that `other` can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # connecting a UDP socket sends no packet
        return str(probe.getsockname()[0])
