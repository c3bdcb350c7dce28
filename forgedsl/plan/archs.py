"""Dimensions of the model families by name, for divisibility, memory and context checks.

Only published sizes are listed; a model whose dimensions are not known here, nor from a local
config.json, is not checked (`check --deep` reads the hub).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.hir.ir import Constructor, Decl
from forgedsl.records import dataclass
from forgedsl.shipped import locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """What the checks need; `experts` is 0 for dense models."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    ffn: int
    head_dim: int = 128
    experts: int = 0
    tied: bool = False


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False) -> Dims:
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        vocab=151_936,
        context=40_960,
        ffn=ffn,
        tied=tied,
    )


def _llama3(layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False) -> Dims:
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        vocab=128_256,
        context=131_072,
        ffn=ffn,
        head_dim=hidden // heads,
        tied=tied,
    )


DIMS: Mapping[tuple[str, str], Dims] = {
    ("qwen3", "0.6B"): _qwen3(28, 1024, 16, 3072, tied=True),
    ("qwen3", "1.7B"): _qwen3(28, 2048, 16, 6144, tied=True),
    ("qwen3", "4B"): _qwen3(36, 2560, 32, 9728, tied=True),
    ("qwen3", "8B"): _qwen3(36, 4096, 32, 12288),
    ("qwen3", "14B"): _qwen3(40, 5120, 40, 17408),
    ("qwen3", "32B"): _qwen3(64, 5120, 64, 25600),
    ("llama3", "1B"): _llama3(16, 2048, 32, 8192, tied=True),
    ("llama3", "3B"): _llama3(28, 3072, 24, 8192, tied=True),
    ("llama3", "8B"): _llama3(32, 4096, 32, 14336),
    ("llama3", "70B"): _llama3(80, 8192, 64, 28672),
}

HUB_NAME = re.compile(r"(Qwen/Qwen3|meta-llama/(?:Meta-)?Llama-3(?:\.[123])?)-([0-9.]+B)(?:-|$)")

EXPLICIT = ("layers", "hidden", "heads", "kv_heads", "vocab", "ffn", "head_dim", "experts", "tied")

CONFIG_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "ffn": "intermediate_size",
    "head_dim": "head_dim",
    "tied": "tie_word_embeddings",
}


def dims_of(model: Decl, base_dir: Path | None) -> Dims | None:
    """Dimensions of a declared model: by name, by explicit numbers, or from its config.json."""
    arch = model.settings["arch"].value
    if isinstance(arch, Constructor):
        explicit = {k: arch.args[k] for k in EXPLICIT if arch.args.get(k) is not None}
        named = DIMS.get((arch.name, str(arch.args.get("size"))))
        if explicit and named is None:
            return _explicit(explicit, model)
        return named
    source = model.settings["source"].value
    if isinstance(source, Constructor) and source.name == "local" and base_dir is not None:
        return _from_config(locate(str(source.args["path"]), base_dir) / "config.json")
    if isinstance(source, Constructor) and source.name == "hf":
        return _from_name(str(source.args["id"]))
    return None


def _from_name(model_id: str) -> Dims | None:
    """The dimensions of a published model by its name on the hub, "Qwen/Qwen3-4B-Base"."""
    found = HUB_NAME.match(model_id)
    if found is None:
        return None
    return DIMS.get(("qwen3" if found[1].startswith("Qwen") else "llama3", found[2]))


def _explicit(given: Mapping[str, Any], model: Decl) -> Dims | None:
    needed = ("layers", "hidden", "heads", "vocab")
    if any(key not in given for key in needed):
        return None
    context = model.settings["context"].value
    filled = {
        "kv_heads": given["heads"],
        "ffn": 4 * given["hidden"],
        "head_dim": given["hidden"] // given["heads"],
        "context": context if isinstance(context, int) else 0,
        **given,
    }
    return Dims(**filled)


def _from_config(path: Path) -> Dims | None:
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    found = {name: config[key] for name, key in CONFIG_KEYS.items() if config.get(key) is not None}
    found.setdefault("head_dim", found["hidden"] // found["heads"])
    found["experts"] = config.get("num_experts") or config.get("num_local_experts") or 0
    return Dims(**found)
