"""SmolLM3 3B: Llama's layers, of which every fourth does not rotate queries and keys."""

from forgedsl.families.base import Dims, Family

_3B = Dims(
    layers=36,
    hidden=2048,
    heads=16,
    kv_heads=4,
    vocab=128_256,
    context=65_536,
    ffn=11_008,
    tied=True,
    rope_theta=5e6,
    no_rope_interval=4,
)

FAMILY = Family(
    name="smollm3",
    doc="SmolLM3",
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    sizes={"3B": _3B},
    hub=((r"HuggingFaceTB/SmolLM3-(3B)(?:-Base)?", {}),),
    ends=("<|im_end|>", "<|end_of_text|>"),
    tools="hermes",
    tokenizer="smollm3",
    defaults={"no_rope_interval": 4},
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
    },
    with_no_rope=True,
    like="llama3",
)
