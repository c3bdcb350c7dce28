"""A random Qwen3 of two layers that writes thoughts and tool calls, and its tokenizer.

Weights are random; some are then set so that certain tokens follow others: `<think>` after the
header of a turn, and a whole tool call after its first token. Attention and feed-forward layers are
large enough that each log-prob depends on the context.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCAB, HIDDEN = 1024, 64
CALL = '{"name": "add", "arguments": {"a": 1}}'
WRITTEN = ("<think>", "</think>", "<tool_call>", "</tool_call>", CALL)
EVERYWHERE = {
    "</think>": 1.7, "<|im_end|>": 1.6, "<tool_call>": 2.2,
    "<|im_start|>": -2.0, "<|endoftext|>": -2.0, "<think>": -2.0,
}  # fmt: skip
"""tokens and what they are made more likely by"""
FOLLOWS = {
    "\n": "<think>", "<tool_call>": CALL, CALL: "</tool_call>", "</tool_call>": "<|im_end|>",
}  # fmt: skip
"""tokens that are followed by another"""
TEMPLATE = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set text = m.content or '' %}"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}"
    "{{ text.split('</think>')[-1] }}{% else %}{{ text }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""drops the thoughts of turns before the last user message, as Qwen3's does"""


def write(folder: Path) -> None:
    """Write model and tokenizer."""
    tokenizer = made_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, initializer_range=0.12,
        tie_word_embeddings=False, max_position_embeddings=6144,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        shape_what_follows(model, tokenizer)
    model.save_pretrained(folder)


def words() -> Iterator[str]:
    """Yield lines of made-up words, always the same."""
    draw = random.Random(1)
    syllables = [
        c + v for c in "bcdfghjklmnpqrstvwxz" for v in ("a", "e", "i", "o", "u", "an", "er")
    ]
    known = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(2000)]
    for _ in range(4000):
        yield " ".join(draw.choices(known, k=10))


def made_tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(WRITTEN), show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(words(), trainer)
    made.add_tokens([AddedToken(text, normalized=False) for text in WRITTEN])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )  # fmt: skip


def shape_what_follows(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Make some tokens likely: everywhere (by a constant of all embeddings), or after another (by a
    dimension that only its embedding has, and that no layer changes)."""
    inputs, outputs = model.model.embed_tokens.weight, model.lm_head.weight
    written = [
        part.weight
        for layer in model.model.layers
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj)
    ]
    inputs[:, 0] = 0.5
    outputs *= 0.5
    for weight in written:
        weight *= 0.5
    place = tokenizer.convert_tokens_to_ids
    for text, gain in EVERYWHERE.items():
        outputs[place(text), 0] += gain
    for at, (before, after) in enumerate(FOLLOWS.items(), 1):
        (first,) = tokenizer(before, add_special_tokens=False)["input_ids"]
        inputs[:, at] = outputs[:, at] = 0.0
        for weight in written:
            weight[at] = 0.0
        inputs[first, at] = 2.0
        outputs[place(after), at] = 3.0


if __name__ == "__main__":
    write(Path(sys.argv[1]))
