"""Folders in Hugging Face layout: weights or an adapter, config, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from forgedsl.families import registry
from forgedsl.lower import job as spec
from forgedsl_runtime.models import HF_DTYPES, TOKENIZER_FILES, tokenizer_folder

SHARD = "5GB"
"""largest weight file, the default of transformers"""
KEPT = (".json", ".txt", ".model", ".jinja", ".py")
"""suffixes of non-weight files of a model: config, tokenizer, code"""


def write_folder(state: dict[str, Any], target: Path, folder: Path, dtype: str) -> None:
    """Write the weights to `target`, and copy the other files of the model's `folder` there. The
    copied config names `dtype`, and no layers that the weights lack (`Family.written`)."""
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
    for family in registry.FAMILIES:
        if family.model_type == config.get("model_type"):
            config |= family.written
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_adapter(
    layers: dict[str, tuple[Any, Any]], target: Path, *, base: str, lora: spec.Lora
) -> None:
    """Write an adapter in the layout of PEFT: A [rank, in] and B [out, rank] of each layer, and the
    config that names their model and layers. `base` is the model that the adapter was trained
    on."""
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for layer, (down, up) in layers.items():
        tensors[f"base_model.model.{layer}.lora_A.weight"] = down.contiguous()
        tensors[f"base_model.model.{layer}.lora_B.weight"] = up.contiguous()
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    (target / "adapter_model.safetensors").chmod(0o644)
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (target / "adapter_config.json").write_text(text, encoding="utf-8")


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
