"""How new weights enter a vLLM engine that runs.

keeps_weights --> load      over the old ones, where no layer repacks its weights
             `--> repack    after vLLM's own reload: what that does not pack anew
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any

UNPACKED = {"NoneType", "UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}
"""methods of vLLM that multiply by weights as they were loaded"""
RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"
NOT_LOADED = "%s: Failed to load weights"


def silence_reload_warnings(is_tied: bool) -> None:
    """Hide warnings that every weight sync would log. A reload warns of each layer that gets no
    weights, and two kinds never get any: rotary embeddings, and a head tied to the embedding.
    Warnings of other layers stay."""
    names = ("RotaryEmbedding", "ParallelLMHead") if is_tied else ("RotaryEmbedding",)

    def says_something(record: logging.LogRecord) -> bool:
        args: Any = record.args
        return record.msg != NOT_LOADED or not str(args[0]).endswith(names)

    logging.getLogger(RELOAD_LOGGER).addFilter(says_something)


def load(model: Any, weights: Iterable[tuple[str, Any]]) -> None:
    """Let vLLM load the weights, if there are any."""
    weights = iter(weights)
    for first in weights:
        model.load_weights(itertools.chain([first], weights))


def keeps_weights(model: Any) -> bool:
    """True if no layer repacks its weights after loading, so that new ones can be written over
    them. Otherwise a full reload repacks them: it takes 0.1 s longer, and needs memory for a copy
    of one layer's experts."""
    methods = [m.quant_method for m in model.modules() if hasattr(m, "quant_method")]
    return all(type(each).__name__ in UNPACKED or _is_unpacked(each) for each in methods)


def _is_unpacked(method: Any) -> bool:
    """True if `method` multiplies by experts' weights as they were loaded, without repacking."""
    if type(method).__name__ != "UnquantizedFusedMoEMethod":
        return False
    return method.unquantized_backend.name in ("TRITON", "BATCHED_TRITON")


def repack(model: Any) -> None:
    """Pack the new weights that a reload does not pack. On CPUs, vLLM multiplies by packed copies.
    A reload does not pack a tied lm_head (only the embedding is loaded), nor experts, which vLLM
    packs only at startup."""
    if model.config.tie_word_embeddings:
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if type(method).__name__ == "UnquantizedFusedMoEMethod":
            method.moe_kernel.fused_experts.process_weights_after_loading(module)
