"""torchtitan model configs: from a job's model to torchtitan's own `ModelSpec`, adapted.

Every model is read from its config.json and built by its family (`families/`). Two parts are
replaced through torchtitan's configuration system, the inner attention and the lm_head. On GPUs the
inner attention is variable-length attention over one packed row. CPUs have no kernel for it; there
it is SDPA with a mask. The lm_head is `LossHead`, which calls the loss with hidden states and
weight inside its own forward, so that FSDP's hooks around lm_head also apply to the loss. Part of
the adapter in `model.py`; import nothing of torchtitan at module level.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from forgedsl.errors import LaunchError
from forgedsl.families import registry
from forgedsl.families.base import Dims, Family, Unsupported, difference
from forgedsl.lower import job as spec
from forgedsl_runtime.services.titan.upstream import families
from forgedsl_runtime.services.titan.upstream.attention import masked_attention, packed_attention

HeadFn = Callable[[Tensor, Tensor, dict[str, Any]], Any]
"""function of hidden [R, L, H], lm_head weight [V, H] and a dict (`group` and `vocabulary` if
tensor parallelism splits the vocabulary); its result is returned by the model's forward"""


def model_spec(model: spec.Model, folder: Path) -> Any:
    """Return torchtitan's ModelSpec for the model in `folder`, by its config.json.

    Raises:
        LaunchError: its family is unknown, or it differs from the declared model.
    """
    family, dims = read_model(model, folder)
    return families.build(family, dims)


def read_model(model: spec.Model, folder: Path) -> tuple[Family, Dims]:
    """Return family and dimensions of the model in `folder`.

    Raises:
        LaunchError: its family is unknown, or they differ from those declared.
    """
    config_file = folder / "config.json"
    if not config_file.exists():
        raise LaunchError(f"model folder {folder.name} has no config.json")
    try:
        family, dims = registry.by_config(json.loads(config_file.read_text()))
    except Unsupported as why:
        raise LaunchError(
            f"{folder.name}: {why}; supported families are {registry.names()}"
        ) from why
    if model.arch is not None:
        declared = registry.family(model.arch.family)
        named = declared.dims(model.arch.size, model.arch.dims, model.context)
        why_not = difference(named, dims)
        if declared.model_type != family.model_type:
            why_not = f"model_type {family.model_type}, not {declared.model_type}"
        if why_not:
            raise LaunchError(f"{folder.name} differs from the declared `arch`: {why_not}")
    return family, dims


def adapt_config(config: Any, model: spec.Model, service: spec.TitanService) -> Any:
    """Put our attention and lm_head into torchtitan's model config; size RoPE to the context.

    Raises:
        LaunchError: a training row would be longer than the model's context.
    """
    context = model.context or config.max_seq_len
    if service.batch.seq_len > config.max_seq_len:
        raise LaunchError(
            f"batch.seq_len = {service.batch.seq_len} exceeds the model's context "
            f"of {config.max_seq_len} tokens"
        )
    attention: Any = masked_attention() if service.mesh.device == "cpu" else packed_attention()
    loss_head: Any = _loss_head()
    for layer in config.layers:
        layer.attention.inner_attention = attention.Config()
        layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=context)
    head = config.lm_head
    config.lm_head = loss_head.Config(
        **{f.name: getattr(head, f.name) for f in dataclasses.fields(head)}
    )
    return config


def keep_loss_whole(config: Any) -> None:
    """Drop the output sharding of lm_head: it returns a loss, not logits."""
    sharding = config.lm_head.sharding_config
    if sharding is not None:
        config.lm_head.sharding_config = dataclasses.replace(
            sharding, out_src_shardings=None, out_dst_shardings=None
        )


def local_parts(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return hidden states, this rank's shard of a weight split over the vocabulary, and a dict
    that describes the split. The gradient of `hidden` needs no reduction: a loss with a `group` has
    already summed it over the ranks."""
    if not isinstance(weight, DTensor):
        return hidden, weight, {}
    shared = {"group": weight.device_mesh.get_group(), "vocabulary": weight.shape[0]}
    if isinstance(hidden, DTensor):
        hidden = hidden.to_local(grad_placements=[Replicate()])
    return hidden, weight.to_local(grad_placements=weight.placements), shared


def _loss_head() -> type:
    """Make the lm_head class from torchtitan's linear layer, after torchtitan knows its device."""
    from torchtitan.models.common.linear import Linear

    class LossHead(Linear):
        """lm_head that returns `head(hidden, weight)` if `head` is set, else logits."""

        @dataclass(kw_only=True, slots=True)
        class Config(Linear.Config):
            pass

        head: HeadFn | None = None

        def forward(self, input: Tensor) -> Any:
            if self.head is None:
                return super().forward(input)
            return self.head(*local_parts(input, self.weight))

    return LossHead
