"""Qwen3 with experts in all layers: softmax over 128, the best 8, normalized (2505.09388)."""

from forgedsl.families.base import Dims, Family


def _size(layers: int, hidden: int, heads: int, ffn: int) -> Dims:
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=4,
        vocab=151_936,
        context=40_960,
        ffn=ffn,
        experts=128,
        active=8,
        normalized=True,
        qk_norm=True,
    )


FAMILY = Family(
    name="qwen3_moe",
    doc="Qwen3 with experts",
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    sizes={"30B-A3B": _size(48, 2048, 32, 768), "235B-A22B": _size(94, 4096, 64, 1536)},
    hub=(
        (
            r"Qwen/Qwen3-(30B-A3B)-(?:Instruct|Thinking)-2507",
            {"context": 262_144, "rope_theta": 1e7},
        ),
        (r"Qwen/Qwen3-(30B-A3B|235B-A22B)(?:-Base)?", {}),
    ),
    ends=("<|im_end|>", "<|endoftext|>"),
    tools="hermes",
    tokenizer="qwen",
    defaults={"qk_norm": True, "normalized": True},
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
)
