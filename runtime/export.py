"""Weights of a run -> a folder in Hugging Face layout, and from there to the hub.

    RUN/checkpoints/step-N --its weights--> state --write_folder--> FOLDER --push--> hub

Needs no meshes and no GPU: this process reads the checkpoint on the CPU, in the export's dtype.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.runtime.models import HF_DTYPES, TOKENIZER_FILES, resolve_model, tokenizer_folder
from forgedsl.types.flow import Role

SHARD = "5GB"
"""largest weight file, the default of transformers"""
KEPT = (".json", ".txt", ".model", ".jinja", ".py")
"""suffixes of non-weight files of a model: config, tokenizer, code"""


def export(run_dir: Path, step: int, target: Path) -> Path:
    """Write the weights of checkpoint `step` of a run to `target`, with config and tokenizer.

    Raises:
        LaunchError: a file of the model is missing, or the folder cannot be written.
    """
    from forgedsl.runtime.upstream import value_head
    from forgedsl.runtime.upstream.titan import checkpoint_weights

    job = spec.read_job(run_dir)
    service = job.services[next(node.target for node in job.nodes if Role.UPDATES in node.roles)]
    assert isinstance(service, spec.TitanService)
    model = job.models[service.model]
    folder = resolve_model(job, service.model, run_dir, run_dir)
    state, head = checkpoint_weights(model, service, folder, run_dir / f"checkpoints/step-{step}")
    try:
        write_folder(state, target, folder, model.dtype)
        value_head.save(head, target)
        write_tokenizer(job, service.model, target, run_dir)
    except Exception as error:  # safetensors has an exception of its own for a full disk
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise LaunchError(f"cannot write the export to {target}: {error}") from error
    return target


def write_folder(state: dict[str, Any], target: Path, folder: Path, dtype: str) -> None:
    """Write the weights, and copy the other files of the model's `folder` with `dtype` in the
    config."""
    from huggingface_hub import save_torch_state_dict

    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob("model*.safetensors*"):
        stale.unlink()
    save_torch_state_dict(state, target, max_shard_size=SHARD)
    for file in target.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors makes it private
    for file in folder.glob("*"):
        if file.suffix in KEPT and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = HF_DTYPES[dtype]
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_tokenizer(job: spec.Job, name: str, target: Path, run_dir: Path) -> None:
    """Copy the tokenizer and chat template beside the weights, if the job sets its own."""
    model = job.models[name]
    if model.tokenizer is not None:
        source = tokenizer_folder(job, name, run_dir, run_dir)
        for file in TOKENIZER_FILES:
            if (source / file).exists():
                shutil.copyfile(source / file, target / file)
    if model.chat_template is not None:
        (target / "chat_template.jinja").write_text(model.chat_template, encoding="utf-8")


def create_repository(name: str) -> str:
    """Create the hub repository `name` (private) unless it exists; return its address."""
    return str(_hub(lambda api: api.create_repo(name, private=True, exist_ok=True), name))


def push(folder: Path, name: str) -> None:
    """Upload an exported folder to a hub repository."""
    message = "Exported by forgec"
    upload = {"repo_id": name, "folder_path": folder, "commit_message": message}
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
            "HF_TOKEN, or write a folder with --to FOLDER and push it from elsewhere with "
            f"`hf upload {name} FOLDER`"
        ) from error
