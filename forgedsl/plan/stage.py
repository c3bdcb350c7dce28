"""The work of a node in one step: a stage of the cost."""

from __future__ import annotations

from forgedsl.records import dataclass, replace
from forgedsl.types.flow import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The work of a node in one step, over all ranks of its service. `latency` is the time of a
    batch if `batches` are processed at once, as many as possible, and `alone` if it is the only
    one."""

    node: str
    service: str
    device: str
    tokens: int
    flops: float
    bytes: float
    seconds: float
    detail: str
    latency: float = 0.0
    alone: float = 0.0
    batches: float = 1.0
    roles: frozenset[Role] = frozenset()
    exchanged: int = 0
    """bytes that a rank sends to experts of other ranks and back"""
    experts_s: float = 0.0
    """seconds of that, a part of `seconds`"""

    def slower(self, times: float) -> Stage:
        """Return the stage with all its times multiplied by `times`."""
        return replace(self, seconds=times * self.seconds, latency=times * self.latency,
                       alone=times * self.alone)  # fmt: skip

    def at(self, step: float) -> float:
        """Return the seconds of a batch in steps of so many seconds. Its time grows evenly from
        `alone` to `latency` with the number n of batches at once, and n = time / step."""
        if self.batches <= 1 or self.latency <= self.alone:
            return max(self.seconds, self.latency)
        growth = (self.latency - self.alone) / (self.batches - 1)
        count = self.batches if step <= growth else (self.alone - growth) / (step - growth)
        return self.alone + growth * (min(max(count, 1.0), self.batches) - 1)
