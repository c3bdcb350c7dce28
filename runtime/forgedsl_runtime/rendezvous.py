"""Rendezvous of the ranks of a process group."""

from __future__ import annotations

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def rendezvous_store() -> TCPStore:
    """Make the rendezvous store of a process group; it lives as long as the caller holds it. It
    binds a free port itself: a port that is found and released could be taken meanwhile."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
