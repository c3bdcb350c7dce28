"""vLLM's FlashAttention backend; pure decode steps go through `attention` instead."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from vllm.config import CUDAGraphMode, VllmConfig, get_layers_from_vllm_config
from vllm.forward_context import is_forward_context_available
from vllm.model_executor.layers.attention.attention import Attention, get_attention_context
from vllm.platforms import current_platform
from vllm.utils.math_utils import cdiv
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.worker.block_table import get_block_table_width

from forgedsl_runtime.services.vllm.upstream import attention

WIDTHS = (64, 128, 256)
"""supported head dimensions: powers of two"""


class SharedPageBuilder(flash_attn.FlashAttentionMetadataBuilder):
    """Groups the rows of each decode step by the pages they share."""

    supports_update_block_table = False  # another page table has other groups

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        rows = max(self.vllm_config.scheduler_config.max_num_seqs, self.max_cudagraph_size or 0)
        group = self.num_heads_q // self.num_heads_kv
        self._groups = attention.SharedPageGroups(rows, group, self.device)
        config = self.vllm_config
        # Without asynchronous scheduling a page counts as cached in the step that fills it. So a
        # request that enters in this step may read it, and vLLM has to write it before.
        self._writes = (
            config.scheduler_config.async_scheduling
            or not config.cache_config.enable_prefix_caching
        )

    @cached_property
    def decodes_all(self) -> bool:
        """True if our kernel computes all decode steps of the layers of this builder. Where one
        graph serves mixed steps and decode steps, that graph has vLLM's kernel."""
        layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names)
        mode = self.compilation_config.cudagraph_mode.mixed_mode()
        return (
            mode != CUDAGraphMode.FULL
            and len(layers) == len(self.layer_names) > 0
            and all(
                isinstance(layer.impl, SharedPageImpl) and layer.impl.decodes(layer)
                for layer in layers.values()
            )
        )

    def _get_scheduler_metadata(self, **named: Any) -> torch.Tensor | None:
        """Return FlashAttention's plan for its programs; None where no layer needs it."""
        if named["max_query_len"] == 1 and named["causal"] is True and self.decodes_all:
            return None
        plan: torch.Tensor | None = super()._get_scheduler_metadata(**named)
        return plan

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> flash_attn.FlashAttentionMetadata:
        """Build vLLM's metadata; add the page groups (`groups`) if each row has one query, and
        whether our kernel writes the new tokens (`writes`)."""
        found = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if found.max_query_len == 1 and found.causal is True:
            self._groups.form(found.block_table, found.seq_lens, self.block_size)
            found.groups = self._groups  # type: ignore[attr-defined]
            found.writes = self._writes  # type: ignore[attr-defined]
        return found


class SharedPageImpl(flash_attn.FlashAttentionImpl):
    """Attention over pages: our kernel for decode steps, vLLM's for everything else."""

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self._ours = (
            self.head_size in WIDTHS
            and self.sliding_window == (-1, -1)
            and self.alibi_slopes is None
            and self.sinks is None
            and not self.logits_soft_cap
            and self.attn_type == AttentionType.DECODER
            and self.dcp_world_size == 1
            and not self.batch_invariant_enabled
        )
        self._quantized = is_quantized_kv_cache(self.kv_cache_dtype)

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write keys and values to the cache, unless `forward` will do it for these slots."""
        if is_forward_context_available():
            metadata, _, _, slots = get_attention_context(layer.layer_name)
            if slot_mapping is slots and self._groups_of(layer, metadata) and metadata.writes:
                return
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    def decodes(self, layer: Any) -> bool:
        """Return whether our kernel computes this layer's decode steps. It has one scale for all
        quantized keys of a layer, and one for all values."""
        return self._ours and not (self._quantized and layer._k_scale.numel() > 1)

    def compiles_ahead(self, layer: Any) -> bool:
        """Return whether the kernel of this layer's decode steps is known before the first one."""
        return self.decodes(layer) and not self._quantized

    def _groups_of(self, layer: Any, metadata: Any) -> attention.SharedPageGroups | None:
        """Return the page groups of a step that our kernel computes."""
        return getattr(metadata, "groups", None) if self.decodes(layer) else None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See FlashAttentionImpl.forward."""
        groups = self._groups_of(layer, attn_metadata)
        if groups is None or output_scale is not None:  # vLLM refuses a scale of outputs
            found: torch.Tensor = super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output,
                output_scale, output_block_scale,
            )  # fmt: skip
            return found
        scale, value_scale, divisors = self.scale, 1.0, (1.0, 1.0)
        if self._quantized:
            kv_cache = kv_cache.view(current_platform.fp8_dtype())
            scale *= layer._q_scale_float * layer._k_scale_float
            value_scale = layer._v_scale_float
            divisors = layer._k_scale_float, layer._v_scale_float
        rows = attn_metadata.seq_lens.shape[0]
        slots, new = get_attention_context(layer.layer_name)[3], None
        # an earlier layer has written the new tokens if this layer shares its cache
        if attn_metadata.writes and slots is not None and not self.kv_sharing_target_layer_name:
            new = attention.NewTokens(key[:rows], value[:rows], slots[:rows], *divisors)
        attention.decode(
            query[:rows], kv_cache, attn_metadata.block_table, attn_metadata.seq_lens,
            output[:rows], groups, scale, value_scale, new,
        )  # fmt: skip
        return output


class SharedPageBackend(flash_attn.FlashAttentionBackend):
    """This backend is registered under the name FLASH_ATTN: vLLM then uses it wherever it would
    use its FlashAttention."""

    @staticmethod
    def get_impl_cls() -> type[SharedPageImpl]:
        return SharedPageImpl

    @staticmethod
    def get_builder_cls() -> type[SharedPageBuilder]:
        return SharedPageBuilder


def compile_in_thread(config: VllmConfig) -> None:
    """Compile our kernels for the decode steps of an engine, while it does other things. Triton
    holds Python's lock for a small part of this. Kernels for quantized keys, and those that other
    steps need, are compiled at their first use."""
    layers = get_layers_from_vllm_config(config, Attention)
    shapes = {
        (layer.num_heads, layer.num_kv_heads, layer.head_size)
        for layer in layers.values()
        if isinstance(layer.impl, SharedPageImpl) and layer.impl.compiles_ahead(layer)
    }
    device = torch.cuda.current_device()
    work = partial(_compile_ahead, config, sorted(shapes), device)
    threading.Thread(target=work, name="compile attention", daemon=True).start()


def _compile_ahead(config: VllmConfig, shapes: Sequence[tuple[int, int, int]], device: int) -> None:
    """Compile the kernels of decode steps of all sizes, for layers of these (heads, KV heads, head
    dimension), and those that prepare a step and draw its tokens."""
    from forgedsl_runtime.services.vllm.upstream import decode_steps

    torch.cuda.set_device(device)
    scheduling, page = config.scheduler_config, config.cache_config.block_size
    largest, dtype = scheduling.max_num_seqs, config.model_config.dtype
    assert isinstance(dtype, torch.dtype)
    recorded = config.compilation_config.cudagraph_capture_sizes or ()
    width = get_block_table_width(cdiv(config.model_config.max_model_len, page), page)
    writes = scheduling.async_scheduling or not config.cache_config.enable_prefix_caching
    with torch.device("meta"):
        for heads, kv_heads, size in shapes:
            groups = attention.SharedPageGroups(
                max(largest, *recorded, 0), heads // kv_heads, torch.device("meta")
            )
            cache = torch.empty((1, kv_heads, page, 2 * size), dtype=dtype)
            for rows in sorted({largest, *(n for n in recorded if n < largest)}, reverse=True):
                queries = torch.empty((rows, heads, size), dtype=dtype)
                keys = torch.empty((rows, kv_heads, size), dtype=dtype)
                table = torch.empty((rows, width), dtype=torch.int32)
                lengths = torch.empty(rows, dtype=torch.int32)
                slots = torch.empty(rows, dtype=torch.int64)
                groups.form(table, lengths, page)
                attention.decode(
                    queries, cache, table, lengths, queries, groups, 1.0, 1.0,
                    attention.NewTokens(keys, keys, slots) if writes else None,
                )  # fmt: skip
        if shapes:
            decode_steps.compile_ahead(
                largest, config.model_config.get_vocab_size(), config.model_config.max_model_len,
                width, page, dtype,
            )  # fmt: skip


def install() -> None:
    """Register our backend as vLLM's FLASH_ATTN."""
    name = f"{SharedPageBackend.__module__}.{SharedPageBackend.__qualname__}"
    register_backend(AttentionBackendEnum.FLASH_ATTN, name)
