"""Mistral without a sliding window, 7B to 24B: the Llama architecture."""

from forgedsl.families.base import Dims, Family

_7B = Dims(
    layers=32, hidden=4096, heads=32, kv_heads=8, vocab=32_768, context=32_768, ffn=14_336, eps=1e-5
)

_12B = Dims(
    layers=40, hidden=5120, heads=32, kv_heads=8, vocab=131_072, context=131_072, ffn=14_336,
    eps=1e-5,
)  # fmt: skip
_24B = Dims(
    layers=40, hidden=5120, heads=32, kv_heads=8, vocab=131_072, context=32_768, ffn=32_768,
    eps=1e-5, rope_theta=1e8,
)  # fmt: skip

FAMILY = Family(
    name="mistral",
    doc="Mistral 7B, Nemo, Small, Magistral and Devstral without a sliding window",
    model_type="mistral",
    architecture="MistralForCausalLM",
    sizes={"7B": _7B, "12B": _12B, "24B": _24B},
    hub=(
        (r"mistralai/Mistral-(7B)-(?:Instruct-)?v0\.3", {}),
        (r"mistralai/Mistral-(7B)-Instruct-v0\.2", {"vocab": 32_000}),
        (r"mistralai/Mistral-Nemo-(?:Base|Instruct)-2407", {"size": "12B"}),
        (r"mistralai/Mistral-Small-(24B)-(?:Base|Instruct)-2501", {}),
        (
            r"mistralai/Magistral-Small-250[67]",
            {"size": "24B", "context": 40_960, "rope_theta": 1e9},
        ),
        (r"mistralai/Devstral-Small-2505", {"size": "24B", "context": 131_072, "rope_theta": 1e9}),
    ),
    ends=("</s>",),
    tools="mistral",
    tokenizer="mistral",
    defaults={"eps": 1e-5},
    fixed={"hidden_act": "silu", "sliding_window": None},
    like="llama3",
)
