"""Llama 3 to 3.3, and what else calls itself "llama": TinyLlama, Yi, any sizes (2407.21783)."""

from forgedsl.families.base import Dims, Family, RopeScaling


def _size(
    layers: int, hidden: int, heads: int, ffn: int, *, factor: float = 8.0, tied: bool = False
) -> Dims:
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
        eps=1e-5,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(factor=factor, low=1.0, high=4.0, original=8192),
    )


FAMILY = Family(
    name="llama3",
    doc="Llama 3, and other models of type llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    sizes={
        "1B": _size(16, 2048, 32, 8192, factor=32.0, tied=True),
        "3B": _size(28, 3072, 24, 8192, factor=32.0, tied=True),
        "8B": _size(32, 4096, 32, 14_336),
        "70B": _size(80, 8192, 64, 28_672),
        "405B": _size(126, 16_384, 128, 53_248),
    },
    hub=(
        (
            r"meta-llama/Meta-Llama-3-(8B|70B)(?:-Instruct)?",
            {"context": 8192, "rope_scaling": None},
        ),
        (r"meta-llama/(?:Meta-)?Llama-3\.[123]-([0-9]+B)(?:-Instruct)?", {}),
        (r"deepseek-ai/DeepSeek-R1-Distill-Llama-(8B|70B)", {}),
    ),
    ends=("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
    tools="llama3_json",
    tokenizer="llama3",
    defaults={"eps": 1e-5, "rope_theta": 500_000.0},
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
)
