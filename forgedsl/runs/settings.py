"""The settings of a job as a flat table, and those in which jobs differ.

Jobs as JSON --settings_of_all--> {dotted path: value} of each
             --differing--> paths, parameters first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forgedsl.lower.followed import followed_in

LEFT_OUT = ("compiler", "content_hash", "summary", "origins", "program", "topology", "name",
            "schedule.steps", "losses", "logging", "checkpoint")  # fmt: skip
"""derived from other settings, or of no consequence for what is learned"""


def written_path(path: str) -> str:
    """Return a path of a job as the pipeline has it: without the `inputs/` of the run folder."""
    return path.removeprefix("inputs/")


def shortened(text: str, room: int) -> str:
    """Return a text, or its beginning and its end: `data/problems...of_2026.csv`."""
    if len(text) <= room:
        return text
    ends = room - 3
    return f"{text[: ends // 2]}...{text[len(text) - (ends - ends // 2) :]}"


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


def _with_whole(paths: set[str], found: Sequence[Mapping[str, Any]]) -> set[str]:
    """Put the declaration in place of paths that differ only because some jobs lack all of it."""
    there = [{part for path in job for part in _prefixes(path)} for job in found]
    kept = set()
    for path in paths:
        values = [job[path] for job in found if path in job]
        if all(path in parts for parts in there) and all(value in ({}, []) for value in values):
            continue  # empty in some jobs: the paths below it tell them apart
        lacked = [p for p in _prefixes(path) if any(p not in parts for parts in there)]
        whole = bool(lacked) and len({str(value) for value in values}) == 1
        kept.add(lacked[0] if whole else path)
    return kept


def _prefixes(path: str) -> list[str]:
    """`a.b.c`: a, a.b, a.b.c."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def value_at(settings: Mapping[str, Any], path: str) -> Any:
    """The value of a path of `differing`; `yes` for a declaration that the job has, None without
    it."""
    if path in settings:
        return settings[path]
    return "yes" if any(known.startswith(f"{path}.") for known in settings) else None


def settings_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a job.json by dotted path."""
    return {path: value for path, value in leaves(dict(job)) if not path.startswith(LEFT_OUT)}


def settings_of_all(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of jobs that are compared. A value that follows from another setting is the name
    of that setting, such as `run.seed`: it does not differ where only that setting does."""
    pairs = zip(jobs, followed_in(jobs), strict=True)
    return [settings_of(job) | follows for job, follows in pairs]


def differing(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths whose values are not the same in all, parameters of the file first. A declaration
    that some jobs lack is one path, such as `evals.held`; `value_at` tells who has it."""
    paths = {path for job in found for path in job}
    missing = object()
    differ = {p for p in paths if len({str(job.get(p, missing)) for job in found}) > 1}
    said = {path for path in differ if path.startswith("params.") or path == "seed"}
    rest = {path for path in differ - said if ".mesh." not in path and "sha256" not in path}
    rest = _with_whole(rest, found)
    return [
        *sorted(said),
        *sorted(rest, key=lambda path: (not path.startswith("services."), path)),
    ]
