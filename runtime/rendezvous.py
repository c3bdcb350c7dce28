"""Meeting points of the ranks of a process group."""

from __future__ import annotations

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def meeting() -> TCPStore:
    """Make a store at which the ranks of a process group meet, as long as it is held. It listens on
    a free port itself: a port that is found and released could be taken before a rank binds it."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
