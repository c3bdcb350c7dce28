"""Seed-OSS 36B: Qwen2's layers, with biases of queries, keys and values."""

from forgedsl.families.base import Dims, Family

_36B = Dims(
    layers=64,
    hidden=5120,
    heads=80,
    kv_heads=8,
    vocab=155_136,
    context=524_288,
    ffn=27_648,
    qkv_bias=True,
    rope_theta=1e7,
)

FAMILY = Family(
    name="seed_oss",
    doc="Seed-OSS 36B",
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    sizes={"36B": _36B},
    hub=((r"ByteDance-Seed/Seed-OSS-(36B)-(?:Instruct|Base|Base-woSyn)", {}),),
    ends=("<seed:eos>",),
    tokenizer="seed_oss",
    defaults={"qkv_bias": True, "tied": False},
    fixed={
        "hidden_act": "silu",
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
    },
    like="qwen2",
)
