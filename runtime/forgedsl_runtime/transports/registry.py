"""Table of all weight transports."""

from __future__ import annotations

from forgedsl_runtime.transports import ipc, nccl, shm, tcp, tree
from forgedsl_runtime.transports.base import Manifest, Transport, Weights

TRANSPORTS: tuple[Transport, ...] = (
    shm.TRANSPORT, ipc.TRANSPORT, ipc.PEER, nccl.TRANSPORT, tree.TRANSPORT, tcp.TRANSPORT,
)  # fmt: skip


def transport(name: str) -> Transport:
    """Return the transport of this name.

    Raises:
        LookupError: there is none.
    """
    for each in TRANSPORTS:
        if each.name == name:
            return each
    raise LookupError(
        f"there is no transport {name}; there are {', '.join(t.name for t in TRANSPORTS)}"
    )


def open_weights(manifest: Manifest) -> Weights:
    """Yield (Hugging Face name, tensor) of a published set of weights, over its own transport."""
    return transport(manifest.transport).open(manifest)


def fetch_weights(manifest: Manifest) -> None:
    """Receive weights in advance, if the transport can, before the engine loads them."""
    if fetch := transport(manifest.transport).fetch:
        fetch(manifest)
