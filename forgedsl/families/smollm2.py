"""SmolLM2: the Llama architecture in three small sizes with a tokenizer of its own (2502.02737)."""

from forgedsl.families.base import Dims, Family


def _size(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, theta: float = 1e5
) -> Dims:
    return Dims(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=64,
        vocab=49_152,
        context=8192,
        ffn=ffn,
        tied=True,
        eps=1e-5,
        rope_theta=theta,
    )


FAMILY = Family(
    name="smollm2",
    doc="SmolLM2, of the Llama architecture",
    model_type="llama",
    architecture="LlamaForCausalLM",
    sizes={
        "135M": _size(30, 576, 9, 3, 1536),
        "360M": _size(32, 960, 15, 5, 2560),
        "1.7B": _size(24, 2048, 32, 32, 8192, theta=130_000.0),
    },
    hub=((r"HuggingFaceTB/SmolLM2-(135M|360M|1\.7B)(?:-Instruct)?", {}),),
    ends=("<|im_end|>", "<|endoftext|>"),
    tokenizer="smollm2",
    defaults={"eps": 1e-5, "rope_theta": 1e5},
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    like="llama3",
)
