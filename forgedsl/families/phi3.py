"""Phi-4 14B, and other models of type phi3 without long rotations or windows (2412.08905).

Its files join queries, keys and values in one tensor, and gate and up in another.
"""

from forgedsl.families.base import Dims, Family

_14B = Dims(
    layers=40,
    hidden=5120,
    heads=40,
    kv_heads=10,
    vocab=100_352,
    context=16_384,
    ffn=17_920,
    eps=1e-5,
    rope_theta=250_000.0,
)

FAMILY = Family(
    name="phi3",
    doc="Phi-4 14B, and other models of type phi3 with plain rotations",
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    sizes={"14B": _14B},
    hub=(
        (r"microsoft/phi-4", {"size": "14B"}),
        (
            r"microsoft/Phi-4-reasoning(?:-plus)?",
            {"size": "14B", "context": 32_768, "rope_theta": 500_000.0},
        ),
    ),
    ends=("<|im_end|>", "<|endoftext|>"),
    tokenizer="phi4",
    defaults={"eps": 1e-5, "tied": False},
    fixed={"hidden_act": "silu", "sliding_window": None},
    joins_layers=True,
)
