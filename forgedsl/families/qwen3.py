"""Qwen3, dense: norms on queries and keys, heads of 128 whatever the hidden size (2505.09388)."""

from forgedsl.families.base import Dims, Family


def _size(layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False) -> Dims:
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        vocab=151_936,
        context=40_960,
        ffn=ffn,
        tied=tied,
        qk_norm=True,
    )


FAMILY = Family(
    name="qwen3",
    doc="Qwen3, dense",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    sizes={
        "0.6B": _size(28, 1024, 16, 3072, tied=True),
        "1.7B": _size(28, 2048, 16, 6144, tied=True),
        "4B": _size(36, 2560, 32, 9728, tied=True),
        "8B": _size(36, 4096, 32, 12_288),
        "14B": _size(40, 5120, 40, 17_408),
        "32B": _size(64, 5120, 64, 25_600),
    },
    hub=(
        (r"Qwen/Qwen3-(4B)-(?:Instruct|Thinking)-2507", {"context": 262_144, "rope_theta": 5e6}),
        (r"Qwen/Qwen3-([0-9.]+B)(?:-Base)?", {}),
    ),
    ends=("<|im_end|>", "<|endoftext|>"),
    tools="hermes",
    tokenizer="qwen",
    defaults={"qk_norm": True},
    fixed={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
)
