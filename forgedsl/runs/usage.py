"""Resource usage on the run's first host, over its steps: memory of processes, memory and load of
GPUs.

    usage events of events.jsonl --> by name: points (step under way, value)

For each step, the maximum of the sampled memory and the mean of the sampled load are taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from forgedsl.operations.registry import working
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.runs.data import Row, RunData

Points = tuple[tuple[float, float], ...]
GIB = 2**30


def memory(data: RunData) -> dict[str, Points]:
    """Return the memory of each service's processes, in GiB."""
    return _curves(data, lambda event: iter(event["memory"].items()), max, GIB)


def gpu_memory(data: RunData) -> dict[str, Points]:
    """Return the used memory of each GPU, in GiB."""
    return _curves(data, lambda event: _gpus(event, "memory"), max, GIB)


def gpu_load(data: RunData) -> dict[str, Points]:
    """Return the fraction of time in which each GPU was busy."""
    return _curves(data, lambda event: _gpus(event, "load"), fmean, 1)


def _gpus(event: Row, field: str) -> Iterator[tuple[str, float]]:
    return ((f"GPU {gpu['index']}", gpu[field]) for gpu in event["gpus"])


def _curves(
    data: RunData,
    read: Callable[[Row], Iterator[tuple[str, float]]],
    together: Callable[[Sequence[float]], float],
    unit: float,
) -> dict[str, Points]:
    updates = [each.name for each in working() if Role.UPDATES in each.roles]
    steps = sorted((s for name in updates for s in data.spans[name]), key=lambda s: s.end)
    ends, numbers = [span.end for span in steps], [span.fields["step"] for span in steps]
    found: dict[str, dict[int, list[float]]] = {}
    for event in data.usage:
        at = bisect_left(ends, event["time"])
        step = numbers[at] if at < len(numbers) else numbers[-1] if numbers else 0
        for name, value in read(event):
            found.setdefault(name, {}).setdefault(step, []).append(value / unit)
    return {
        name: tuple((float(step), together(values)) for step, values in sorted(by_step.items()))
        for name, by_step in sorted(found.items())
    }
