"""Texts of completions, several at a time.

A tokenizer of transformers decodes one list of tokens after another, and looks at each token in
Python first. Its part in Rust decodes many lists, with all cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

Decoder = Callable[[list[list[int]]], list[str]]


def decoder(tokenizer: Any, *, skip_special_tokens: bool) -> Decoder:
    """Return a function that decodes lists of tokens as `tokenizer.decode` decodes each."""
    from transformers import PreTrainedTokenizerFast as Fast

    kind = type(tokenizer)
    if (
        isinstance(tokenizer, Fast)
        and (kind.decode, kind._decode) == (Fast.decode, Fast._decode)
        and not _cleans_up(tokenizer)
    ):
        many = tokenizer.backend_tokenizer.decode_batch
        return cast("Decoder", partial(many, skip_special_tokens=skip_special_tokens))
    one = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
    return lambda lists: [str(one(tokens)) for tokens in lists]


def _cleans_up(tokenizer: Any) -> bool:
    """Return whether a tokenizer removes spaces from a decoded text. For BPE, transformers does so
    only if it is told twice."""
    cleans = bool(tokenizer.clean_up_tokenization_spaces)
    if type(tokenizer.backend_tokenizer.model).__name__ == "BPE":
        told = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
        return cleans and bool(told)
    return cleans
