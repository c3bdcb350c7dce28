"""Weights of a run -> a folder in Hugging Face layout, and from there to the hub.

    RUN/checkpoints/step-N --its weights--> state --write_folder--> FOLDER --push--> hub
                           --its adapter--> layers --write_adapter--> FOLDER

Needs no meshes and no GPU: this process reads the checkpoint on the CPU, in the export's dtype.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forgedsl import surface
from forgedsl.errors import LaunchError
from forgedsl.families.registry import by_config
from forgedsl.lower import job as spec
from forgedsl.runs.card import NAME as CARD
from forgedsl.runs.card import write_card
from forgedsl.types.flow import Role
from forgedsl_runtime.models import resolve_model
from forgedsl_runtime.weight_folders import write_tokenizer


def export(run_dir: Path, step: int, target: Path, *, adapter: bool = False) -> Path:
    """Write the weights of checkpoint `step` of a run to `target`, with config, tokenizer and model
    card; with `adapter`, the adapter alone in the layout of PEFT.

    Raises:
        LaunchError: a file of the model is missing, the folder cannot be written, this kind of
            service writes no weights, or there is no adapter.
    """
    from forgedsl_runtime.services.registry import kind_of

    job = spec.read_job(run_dir)
    service = job.services[next(node.target for node in job.nodes if Role.UPDATES in node.roles)]
    kind, what = kind_of(service), "an adapter" if adapter else "the weights"
    write = kind.export_adapter if adapter else kind.export
    if write is None:
        raise LaunchError(f"{what} of a service of kind {service.kind} cannot be exported")
    model, checkpoint = job.models[service.model], run_dir / f"checkpoints/step-{step}"
    if adapter and model.adapter is not None:
        raise LaunchError(
            "the run began with an adapter merged into its base, so its own adapter does not fit "
            f"that base; without {surface.flag('--adapter')} the whole model is written"
        )
    folder = resolve_model(job, service.model, run_dir, run_dir)
    if adapter:
        family, _ = by_config(json.loads((folder / "config.json").read_text("utf-8")))
        if family.joins_layers:
            raise LaunchError(
                f"files of {family.name} join layers that the adapter adapts one by one, so it "
                f"cannot be exported alone; without {surface.flag('--adapter')} the whole model is "
                "written"
            )
    try:
        write(model, service, folder, checkpoint, target)
        write_tokenizer(job, service.model, target, run_dir)
        write_card(run_dir, step, target, adapter=adapter)
    except Exception as error:  # safetensors has an exception of its own for a full disk
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise LaunchError(f"cannot write the export to {target}: {error}") from error
    return target


def create_repository(name: str) -> str:
    """Create the hub repository `name` (private) unless it exists; return its address."""
    return str(_hub(lambda api: api.create_repo(name, private=True, exist_ok=True), name))


def push(folder: Path, name: str) -> None:
    """Upload an exported folder to a hub repository. A model card in the repository is not
    overwritten, since somebody may have edited it."""
    written = CARD in _hub(lambda api: list(api.list_repo_files(name)), name)
    upload = {
        "repo_id": name, "folder_path": folder, "commit_message": "Exported by forgec",
        "ignore_patterns": [CARD] if written else None,
    }  # fmt: skip
    _hub(lambda api: api.upload_folder(**upload), name)


def _hub(call: Any, name: str) -> Any:
    """Run a hub call and return its result.

    Raises:
        LaunchError: the hub cannot be reached or refuses.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi()
    try:
        return call(api)
    except (HFValidationError, HTTPError, OSError) as error:
        text = " ".join(str(error).split())[:300]
        raise LaunchError(
            f"{name} cannot be pushed to {api.endpoint}: {text}; log in with `hf auth login` or "
            f"HF_TOKEN, or write a folder with {surface.option('--to', 'FOLDER')} and push it from "
            f"another host with `hf upload {name} FOLDER`"
        ) from error
