"""Ledger of drawn groups: each is consumed or dropped exactly once, also across a resume.

    drawn -> consumed (trained on at a step) | dropped (with a reason)

An entry exists while its group is neither consumed nor dropped. It says where in the dataset the
group begins, so that a resumed run draws exactly these rows again, under the same group id and
hence with the same sampling seeds. `position` is how far the source was read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from forgedsl.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A group in flight: `local` is its number within the source, `before` the position of the
    source when it was drawn, `row` its row (None if the source does not number rows)."""

    local: int
    before: int
    row: int | None


class Ledger:
    """Ledger of one source."""

    def __init__(self) -> None:
        self.position = 0
        self.next_local = 0
        self.consumed = 0
        self.dropped = 0
        self._open: dict[int, Entry] = {}

    def drawn(self, entry: Entry, position: int) -> None:
        if entry.local in self._open:
            raise InternalError(f"group {entry.local} was drawn twice")
        self._open[entry.local] = entry
        self.position = position
        self.next_local = max(self.next_local, entry.local + 1)

    def consume(self, local: int) -> None:
        self._close(local)
        self.consumed += 1

    def drop(self, local: int) -> None:
        self._close(local)
        self.dropped += 1

    @property
    def open(self) -> tuple[Entry, ...]:
        """Groups that are neither consumed nor dropped, oldest first."""
        return tuple(self._open[local] for local in sorted(self._open))

    @property
    def num_open(self) -> int:
        return len(self._open)

    def state_dict(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "next_local": self.next_local,
            "consumed": self.consumed,
            "dropped": self.dropped,
            "open": [asdict(entry) for entry in self.open],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.next_local = state["next_local"]
        self.consumed = state["consumed"]
        self.dropped = state["dropped"]
        self._open = {entry["local"]: Entry(**entry) for entry in state["open"]}

    def _close(self, local: int) -> None:
        if local not in self._open:
            raise InternalError(f"group {local} is consumed or dropped a second time")
        del self._open[local]
