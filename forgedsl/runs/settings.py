"""The settings of a job as a flat table, and those in which jobs differ.

Job as JSON --settings_of--> {dotted path: value} --differing--> paths, parameters first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LEFT_OUT = ("compiler", "content_hash", "summary", "origins", "program", "topology", "name",
            "schedule.steps", "losses", "logging", "checkpoint")  # fmt: skip
"""derived from other settings, or of no consequence for what is learned"""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every leaf of nested lists and dicts."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{index}")
    else:
        yield path, value


def settings_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a job.json by dotted path."""
    return {path: value for path, value in leaves(dict(job)) if not path.startswith(LEFT_OUT)}


def differing(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths whose values are not the same in all, parameters of the file first."""
    paths = {path for job in found for path in job}
    missing = object()
    differ = {p for p in paths if len({str(job.get(p, missing)) for job in found}) > 1}
    said = {path for path in differ if path.startswith("params.") or path == "seed"}
    rest = {path for path in differ - said if ".mesh." not in path and "sha256" not in path}
    return [
        *sorted(said),
        *sorted(rest, key=lambda path: (not path.startswith("services."), path)),
    ]
