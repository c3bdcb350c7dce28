"""Mistral 7B from 0.2 on: the Llama architecture without a sliding window."""

from forgedsl.families.base import Dims, Family

_7B = Dims(
    layers=32, hidden=4096, heads=32, kv_heads=8, vocab=32_768, context=32_768, ffn=14_336, eps=1e-5
)

FAMILY = Family(
    name="mistral",
    doc="Mistral 7B without a sliding window",
    model_type="mistral",
    architecture="MistralForCausalLM",
    sizes={"7B": _7B},
    hub=(
        (r"mistralai/Mistral-(7B)-(?:Instruct-)?v0\.3", {}),
        (r"mistralai/Mistral-(7B)-Instruct-v0\.2", {"vocab": 32_000}),
    ),
    ends=("</s>",),
    tokenizer="mistral",
    defaults={"eps": 1e-5},
    fixed={"hidden_act": "silu", "sliding_window": None},
    like="llama3",
)
