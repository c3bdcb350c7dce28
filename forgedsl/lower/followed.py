"""Settings of a job that follow from others if the file does not set them.

Job as JSON --followed--> {dotted path: the setting that it follows from}

A job holds values alone, so a value that is what the default would be counts as the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHUFFLE = "run.seed"
LENGTH = "sampling.max_tokens"


def followed(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of values that follow from another setting, with the name of that setting:
    `{"datasets.sums.shuffle": "run.seed"}`."""
    found = {}
    lengths = _eval_lengths(job)
    for name, dataset in job.get("datasets", {}).items():
        if dataset.get("shuffle") is not None and dataset["shuffle"] == job.get("seed"):
            found[f"datasets.{name}.shuffle"] = SHUFFLE
        length = dataset.get("max_prompt_tokens")
        if length is not None and length == lengths.get(name, _prompt_length(job)):
            found[f"datasets.{name}.max_prompt_tokens"] = LENGTH
    return found


def followed_in(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return `followed` of each job, without the values of a path that another job has and does not
    follow there: someone wrote them. With seeds 1 and 2 and `shuffle = seed(1)` in both, the 1 of
    the first is no default."""
    found = [followed(job) for job in jobs]
    written = {
        (path, _at(job, path))
        for path in {path for each in found for path in each}
        for job, each in zip(jobs, found, strict=True)
        if path not in each
    }
    return [
        {path: name for path, name in each.items() if (path, _at(job, path)) not in written}
        for job, each in zip(jobs, found, strict=True)
    ]


def _at(job: Mapping[str, Any], path: str) -> Any:
    """Return the value of `datasets.NAME.FIELD`; None if the job has no such dataset. Names of
    datasets can contain dots."""
    home, field = path.removeprefix("datasets.").rsplit(".", 1)
    return job.get("datasets", {}).get(home, {}).get(field)


def _prompt_length(job: Mapping[str, Any]) -> int | None:
    """Return the default of the longest prompt: the smallest context or row of the trainer, minus
    the longest completion. It is that of the compiler if one service samples."""
    services = job.get("services", {}).values()
    samplers = [service for service in services if service.get("sampling")]
    bounds = [_context(job, service) for service in samplers]
    bounds += [(service.get("batch") or {}).get("seq_len") for service in services]
    known = [bound for bound in bounds if bound is not None]
    if not samplers or not known:
        return None
    return max(1, min(known) - max(int(each["sampling"]["max_tokens"]) for each in samplers))


def _eval_lengths(job: Mapping[str, Any]) -> dict[str, int]:
    """Return the default of the longest prompt of each dataset that an eval samples for."""
    found = {}
    for each in job.get("evals", {}).values():
        context = _context(job, job.get("services", {}).get(each.get("service"), {}))
        if each.get("sampling") and context is not None:
            found[each["dataset"]] = max(1, context - int(each["sampling"]["max_tokens"]))
    return found


def _context(job: Mapping[str, Any], service: Mapping[str, Any]) -> int | None:
    """Return the context of a service's model in tokens; None if it is not known."""
    context = job.get("models", {}).get(service.get("model"), {}).get("context")
    return None if context is None else int(context)
