"""Qwen2 and Qwen2.5, dense: biases on queries, keys and values, no norms on them (2412.15115)."""

from forgedsl.families.base import Dims, Family


def _size(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, *, tied: bool = False
) -> Dims:
    # models above 3B have the same vocabulary, padded so that more ranks can split it
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=151_936 if tied else 152_064,
        context=32_768,
        ffn=ffn,
        tied=tied,
        qkv_bias=True,
    )


FAMILY = Family(
    name="qwen2",
    doc="Qwen2 and Qwen2.5, dense",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    sizes={
        "0.5B": _size(24, 896, 14, 2, 4864, tied=True),
        "1.5B": _size(28, 1536, 12, 2, 8960, tied=True),
        "3B": _size(36, 2048, 16, 2, 11_008, tied=True),
        "7B": _size(28, 3584, 28, 4, 18_944),
        "14B": _size(48, 5120, 40, 8, 13_824),
        "32B": _size(64, 5120, 40, 8, 27_648),
        "72B": _size(80, 8192, 64, 8, 29_568),
    },
    hub=(
        (r"Qwen/Qwen2\.5-Math-([0-9.]+B)(?:-Instruct)?", {"context": 4096, "rope_theta": 1e4}),
        (r"Qwen/Qwen2(?:\.5)?(?:-Coder)?-([0-9.]+B)(?:-Instruct)?", {}),
        (
            r"deepseek-ai/DeepSeek-R1-Distill-Qwen-(1\.5B)",
            {"context": 131_072, "rope_theta": 1e4, "tied": False},
        ),
        (r"deepseek-ai/DeepSeek-R1-Distill-Qwen-(7B)", {"context": 131_072, "rope_theta": 1e4}),
        (r"deepseek-ai/DeepSeek-R1-Distill-Qwen-(14B|32B)", {"context": 131_072}),
    ),
    ends=("<|im_end|>", "<|endoftext|>"),
    tools="hermes",
    tokenizer="qwen",
    defaults={"qkv_bias": True},
    fixed={"hidden_act": "silu", "use_sliding_window": False},
)
