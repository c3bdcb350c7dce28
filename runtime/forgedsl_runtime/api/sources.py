"""Sources of models and data in a program. File names are relative to the program; files are hashed
when they are declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forgedsl.lower import job as spec


def hf(id: str, **given: Any) -> spec.HfSource:
    """A model or dataset of the Hugging Face hub: `config`, `split`, `revision`."""
    return spec.HfSource(id=id, **given)


def local(path: str) -> spec.LocalModel:
    """A folder in Hugging Face layout."""
    return spec.LocalModel(path=path, sha256="")


def random(seed: int) -> spec.RandomModel:
    """Random weights."""
    return spec.RandomModel(seed=seed)


def jsonl(path: str) -> spec.FileSource:
    """Rows of a JSON Lines file."""
    return spec.FileSource(kind="jsonl", path=path, sha256="")


def parquet(path: str) -> spec.FileSource:
    """Rows of a Parquet file."""
    return spec.FileSource(kind="parquet", path=path, sha256="")


def csv(path: str) -> spec.FileSource:
    """Rows of a CSV file with a header."""
    return spec.FileSource(kind="csv", path=path, sha256="")


def json(path: str) -> spec.FileSource:
    """Rows of a file with one JSON list."""
    return spec.FileSource(kind="json", path=path, sha256="")


def disk(path: str) -> spec.FileSource:
    """Rows of a folder of `Dataset.save_to_disk`."""
    return spec.FileSource(kind="disk", path=path, sha256="")


def reasoning_gym(task: str, **given: Any) -> spec.ReasoningGymSource:
    """Problems of a task of reasoning-gym: `size`, `seed`, `options`, `packages`."""
    return spec.ReasoningGymSource(task=task, **given)


def mixture(sources: Sequence[spec.DataSource], weights: Sequence[float]) -> spec.MixtureSource:
    """Rows drawn from several sources."""
    return spec.MixtureSource(sources=tuple(sources), weights=tuple(weights))
