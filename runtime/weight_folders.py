"""Folders in Hugging Face layout: weights, config, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.runtime.models import HF_DTYPES, TOKENIZER_FILES, tokenizer_folder

SHARD = "5GB"
"""largest weight file, the default of transformers"""
KEPT = (".json", ".txt", ".model", ".jinja", ".py")
"""suffixes of non-weight files of a model: config, tokenizer, code"""


def write_folder(state: dict[str, Any], target: Path, folder: Path, dtype: str) -> None:
    """Write the weights, and copy the other files of the model's `folder` with `dtype` in the
    config."""
    from huggingface_hub import save_torch_state_dict

    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob("model*.safetensors*"):
        stale.unlink()
    save_torch_state_dict(state, target, max_shard_size=SHARD)
    for file in target.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors creates files that only their owner can read
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
