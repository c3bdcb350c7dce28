"""Gradients of an update of which a part has failed are discarded.

    forward_backward, forward_backward --error--> no gradients, and the error says so

The optimizer must not use a part of the gradients of an update, nor any of them twice. After the
error the trainer is as after its last update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forgedsl.errors import RunError
from forgedsl_runtime.tracebacks import described, places_of


@contextmanager
def discarding(discard: Callable[[], None], *, earlier: bool = False) -> Iterator[None]:
    """Call `discard` if the body fails. `earlier`: there are gradients of earlier calls.

    Ranks that fail alike (from the same samples, or out of memory at the same size) all discard.
    If one rank fails alone, its error reaches the caller at once. The other ranks wait for it in a
    collective, at the latest in the sum of the reports, and so do later calls. When the wait times
    out, their pass fails and they discard, too, or their process ends. No rank adds a later update
    to what it still holds, since the first pass of an update begins with `discard` on all ranks.

    Raises:
        RunError: the body failed, and gradients of earlier calls are lost; it names the error.
    """
    try:
        yield
    except Exception as error:
        discard()
        if not earlier:
            raise
        raise RunError(
            f"{described(error)}; the gradients of this update were discarded: repeat all its "
            "forward_backward calls",
            origin=next(iter(places_of(error)), ""),
        ) from error
