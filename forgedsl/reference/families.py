"""docs/reference/families.md: the model families and what their published sizes cost."""

from forgedsl.families.base import Dims, Family
from forgedsl.families.registry import FAMILIES
from forgedsl.reference.markdown import GENERATED, code, join, table
from forgedsl.sizes.memory import count_text
from forgedsl.sizes.params import (
    active_params,
    forward_flops,
    kv_bytes,
    num_params,
    parts_of_layer,
    vocab_params,
)

INTRODUCTION = """\
`arch = auto` finds the family by `model_type` in the source's config.json, or by the model's name
on the hub; `arch = NAME("SIZE")` sets it. Every field of config.json that changes a logit is read:
widths, heads, biases, norms and their epsilon, RoPE, tied embeddings, experts. The compiler rejects
a model of another family, or with an unsupported feature ([P213](rules.md#p213-model-family)).

Numbers of parameters are exact; *active* counts those used for one token. KV bytes are for one
token in bf16. GFLOPs are for the forward pass of one token with 4,096 tokens of context; a training
step takes three times as many. Attention and MLP are parameters of one layer; in a model with two
kinds of layers, of one with experts."""
PARITY = """\
## Parity

Tiny models of each family with random weights, norms and biases included, in float32 on a CPU
(2026-11-24; `glm4_moe` 2026-11-27): the largest difference of logits between the trainer and
transformers, and that of log-probs between vLLM's engine and transformers; an export of the trainer
gave the same logits in transformers, to the bit. `compiler_tests/runtime/test_family_logits.py`
checks this, up to rounding in float32. `-`: not measured separately, because the engine runs it as
the family with the same layers."""
GAPS = {
    "qwen2": ("4.8e-7", "4.8e-7"), "qwen3": ("4.2e-7", "4.8e-7"),
    "qwen3_moe": ("4.8e-7", "4.8e-7"), "glm4_moe": ("4.8e-7", "4.8e-7"),
    "llama3": ("5.1e-7", "4.8e-7"), "smollm2": ("3.6e-7", "-"),
    "smollm3": ("4.8e-7", "4.8e-7"), "mistral": ("4.2e-7", "-"),
    "seed_oss": ("7.2e-7", "4.8e-7"), "phi3": ("5.1e-7", "4.8e-7"),
}  # fmt: skip
"""by family: largest differences of logits (trainer) and log-probs (engine) from transformers"""
COLUMNS = (
    "size", "layers", "hidden", "parameters", "active", "attention", "MLP or experts",
    "embedding", "head", "KV bytes", "GFLOPs", "context",
)  # fmt: skip


def page() -> str:
    """The whole reference."""
    parts = ["# Model families", GENERATED, INTRODUCTION]
    for family in FAMILIES:
        rows = (_row(size, dims) for size, dims in family.sizes.items())
        parts += [f"## {family.name}", _about(family), table(COLUMNS, rows)]
    gaps = ((code(family.name), *GAPS[family.name]) for family in FAMILIES)
    return join([*parts, PARITY, table(("family", "logits, trainer", "log-probs, engine"), gaps)])


def _about(family: Family) -> str:
    names = ", ".join(code(pattern) for pattern, _ in family.hub)
    fixed = ", ".join(code(f"{key} = {value}") for key, value in family.fixed.items())
    remark = f" {family.remark}" if family.remark else ""
    return (
        f"{family.doc}: `model_type` {code(family.model_type)}, {code(family.architecture)} in "
        f"transformers. Names on the hub: {names}. Only with {fixed}.{remark}"
    )


def _row(size: str, dims: Dims) -> tuple[str, ...]:
    layer = parts_of_layer(dims)
    return (
        code(size),
        str(dims.layers),
        f"{dims.hidden:,}",
        f"{num_params(dims):,}",
        count_text(active_params(dims)),
        count_text(layer["attention"]),
        count_text(layer["mlp"]),
        count_text(vocab_params(dims)),
        "tied" if dims.tied else count_text(vocab_params(dims)),
        f"{kv_bytes(dims, tp=1, pp=1, itemsize=2):,}",
        f"{forward_flops(dims, 4096) / 1e9:.2f}",
        f"{dims.context:,}",
    )
