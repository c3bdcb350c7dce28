"""Model sources -> local folders in Hugging Face layout (config.json, tokenizer, weights).

A `random` source gets a folder of its own in the run folder, with a config written from the
declared architecture and the tokenizer of its `tokenizer` source, and no weights.
"""

from __future__ import annotations

import functools
import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from forgedsl import surface
from forgedsl.errors import LaunchError
from forgedsl.families import registry
from forgedsl.families.base import Unsupported
from forgedsl.lower import job as spec

SHIPPED = "forgedsl:"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
HF_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


class NotAvailableOffline(LaunchError):
    """Something that the job needs is not on this machine: a local model or data file, a package
    that reads data, or a cached download while downloads are off."""


def resolve_path(path: str, job_dir: Path) -> Path:
    """Resolve a path of the job: shipped with the package (`forgedsl:...`) or beside job.json."""
    if path.startswith(SHIPPED):
        root = resources.files("forgedsl.pipelines")
        return Path(str(root.joinpath(path.removeprefix(SHIPPED))))
    return job_dir / path


NO_MODEL = {"job.json": "a run", "controller.json": "a checkpoint of a run"}
"""file name -> kind of folder: a folder with such a file is no model, but is often given as one"""


def resolve_model(
    job: spec.Job, name: str, job_dir: Path, run_dir: Path, *, offline: bool = False
) -> Path:
    """Return the local folder of model `name`; `offline` forbids downloads.

    Raises:
        LaunchError: the folder is missing or the hub cannot be reached.
    """
    model = job.models[name]
    origin = job.origins.get(name, "")
    if isinstance(model.source, spec.RandomModel):
        return _random_folder(model, name, job_dir, run_dir, origin)
    folder = _folder(model.source, job_dir, origin, offline)
    if not (folder / "config.json").is_file():
        source = model.source
        shown = source.id if isinstance(source, spec.HfSource) else Path(source.path).name
        export = surface.call("export RUN --to FOLDER", 'open_run("RUN").export("FOLDER")')
        made = f"`{export}` converts it to a model"
        what = next((w for f, w in NO_MODEL.items() if (folder / f).exists()), "")
        said = f"; it is {what}: {made}" if what else ""
        raise LaunchError(f"{origin}: {shown} is not a model folder: it has no config.json{said}")
    return folder


def weights_folder(job: spec.Job, name: str, job_dir: Path, run_dir: Path) -> Path:
    """Return the folder that the services of model `name` load: that of `resolve_model`, or one in
    the run folder with the model's adapter merged.

    Raises:
        LaunchError: a folder is missing or the hub cannot be reached, or the adapter does not fit.
    """
    model = job.models[name]
    folder = resolve_model(job, name, job_dir, run_dir)
    if model.adapter is None:
        return folder
    from forgedsl_runtime.adapters import merged_folder

    origin = job.origins.get(name, "")
    return merged_folder(
        folder, _folder(model.adapter, job_dir, origin), run_dir / "models" / name,
        wide=model.dtype == "f32", origin=origin,
    )  # fmt: skip


def tenant_adapter(job: spec.Job, tenant: str, job_dir: Path) -> str | None:
    """Return the folder of the adapter with which an engine serves a tenant; None if it answers
    with the base.

    Raises:
        LaunchError: the folder is missing or the hub cannot be reached, or the engine has no layer
            for a part of it.
    """
    source = job.own_adapter(tenant)
    if source is None:
        return None
    name = job.services[tenant].model
    origin = job.origins.get(name, "")
    folder = _folder(source, job_dir, origin)
    from forgedsl_runtime.adapters import check_added

    check_added(resolve_model(job, name, job_dir, job_dir), folder, origin)
    return str(folder)


def check_model_adapter(
    job: spec.Job, name: str, folder: Path, job_dir: Path, *, offline: bool = False
) -> None:
    """Check that the adapter of model `name`, if it has one, fits the weights in `folder`, the
    folder of `resolve_model`. `offline` forbids downloads.

    Raises:
        LaunchError: it does not fit, its folder is missing or the hub cannot be reached.
    """
    model = job.models[name]
    if model.adapter is None:
        return
    from forgedsl_runtime.adapters import check_adapter

    origin = job.origins.get(name, "")
    check_adapter(folder, _folder(model.adapter, job_dir, origin, offline), origin)


def tokenizer_folder(
    job: spec.Job, name: str, job_dir: Path, run_dir: Path, *, offline: bool = False
) -> Path:
    """Return the folder with the tokenizer files of model `name`; `offline` forbids downloads.

    Raises:
        LaunchError: the folder is missing or the hub cannot be reached.
    """
    model = job.models[name]
    source = model.tokenizer or model.source
    if isinstance(source, spec.RandomModel):
        return resolve_model(job, name, job_dir, run_dir)
    return _folder(source, job_dir, job.origins.get(name, ""), offline)


def _folder(source: Any, job_dir: Path, origin: str, offline: bool = False) -> Path:
    if isinstance(source, spec.HfSource):
        return _snapshot(source, origin, offline)
    if isinstance(source, spec.RandomModel):
        raise LaunchError(f"{origin}: random(...) has no tokenizer; set the model's `tokenizer`")
    folder = resolve_path(source.path, job_dir)
    if not folder.is_dir():
        raise NotAvailableOffline(f"{origin}: model folder {source.path} does not exist")
    return folder


def _snapshot(source: spec.HfSource, origin: str, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        revision = source.revision
        return Path(snapshot_download(source.id, revision=revision, local_files_only=offline))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if offline:
            raise NotAvailableOffline(
                f'hf("{source.id}") is not in the local cache of the Hugging Face hub'
            ) from error
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, LocalEntryNotFoundError):
            why = (
                f"it cannot be reached ({why.removeprefix('Got: ')}), and the local cache does "
                "not have the model"
            )
        raise LaunchError(
            f"{origin}: cannot load {source.id} from the Hugging Face hub: {why}"
        ) from error


def _random_folder(model: spec.Model, name: str, job_dir: Path, run_dir: Path, origin: str) -> Path:
    if model.arch is None:
        raise LaunchError(f"{origin}: random(...) needs an architecture, arch = qwen3(...)")
    if model.tokenizer is None:
        raise LaunchError(f"{origin}: random(...) needs a tokenizer, tokenizer = local(...)")
    target = run_dir / "models" / name
    target.mkdir(parents=True, exist_ok=True)
    source = _folder(model.tokenizer, job_dir, origin)
    for file in TOKENIZER_FILES:
        if (source / file).exists():
            shutil.copyfile(source / file, target / file)
    family = registry.family(model.arch.family)
    try:
        dims = family.dims(model.arch.size, model.arch.dims, model.context)
    except Unsupported as why:
        raise LaunchError(f"{origin}: {why}") from why
    size, special = _tokens_of(source, tuple(_written(source / file) for file in TOKENIZER_FILES))
    if size > dims.vocab:
        raise LaunchError(
            f"{origin}: model {name} has vocab = {dims.vocab}, but its tokenizer has {size} "
            f"tokens: write `vocab = {size}` or more"
        )
    config = {
        **family.write(dims),
        **special,
        "dtype": HF_DTYPES[model.dtype],
        "max_position_embeddings": model.context or dims.context,
    }
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return target


def _written(file: Path) -> int:
    return file.stat().st_mtime_ns if file.is_file() else 0


@functools.lru_cache(maxsize=8)
def _tokens_of(folder: Path, written: tuple[int, ...]) -> tuple[int, dict[str, int | None]]:
    """Return the number of tokens of a tokenizer and its special tokens. A start needs them twice,
    and a large tokenizer takes half a second to load. `written`: the times of its files."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return len(tokenizer), {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
