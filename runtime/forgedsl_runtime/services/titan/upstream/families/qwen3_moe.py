"""Qwen3 with experts on torchtitan: routing as published, experts in the dtype of the service.

torchtitan balances experts by a bias of its own and multiplies in bfloat16. The published models
have no such bias, and a run in float32 must agree with its generator, so both are turned off here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.dispatch import dispatcher
from forgedsl_runtime.services.titan.upstream.families.decoder import decoder_spec, mlp_config
from forgedsl_runtime.services.titan.upstream.router import as_replaying


def build(dims: Dims) -> Any:
    """Return the ModelSpec of a Qwen3 model with experts in every layer."""
    from torchtitan.models.qwen3 import Qwen3TransformerBlock, model_registry

    like = model_registry("debugmodel_moe")
    return decoder_spec(dims, like, Qwen3TransformerBlock, feed_forward=experts)


def experts(dims: Dims) -> dict[str, Any]:
    """Return the config of a layer's experts, with their router."""
    from torchtitan.models import qwen3
    from torchtitan.models.common.config_utils import (
        make_moe_config,
        make_routed_experts_config,
        make_router_config,
    )

    routed = make_routed_experts_config(
        dim=dims.hidden,
        hidden_dim=dims.ffn,
        num_experts=dims.experts,
        top_k=dims.active,
        param_init=qwen3._EXPERTS_INIT,
        comm_backend="standard",
    )
    routed.token_dispatcher = dispatcher().Config(num_experts=dims.experts, top_k=dims.active)
    inner = routed.inner_experts
    routed.inner_experts = _grouped().Config(
        **{f.name: getattr(inner, f.name) for f in fields(inner) if f.init}
    )
    router = as_replaying(
        make_router_config(
            dim=dims.hidden,
            num_experts=dims.experts,
            gate_param_init=qwen3._LINEAR_INIT,
            top_k=dims.active,
            score_func="sigmoid" if dims.corrected else "softmax",
            route_norm=dims.normalized,
            route_scale=dims.route_scale,
        )
    )
    return {
        "moe": make_moe_config(
            num_experts=dims.experts, router=router, routed_experts=routed,
            shared_experts=mlp_config(dims, dims.shared * dims.ffn) if dims.shared else None,
            # with a coefficient, torchtitan has a bias; the hook that would change it is not used
            load_balance_coeff=1e-3 if dims.corrected else None,
        )
    }  # fmt: skip


@cache
def _grouped() -> Any:
    from torchtitan.models.common.moe import GroupedExperts

    class Experts(GroupedExperts):
        """Experts that multiply in the dtype of their input."""

        @dataclass(kw_only=True, slots=True)
        class Config(GroupedExperts.Config):
            pass

        def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> Any:
            ends = torch.cumsum(num_tokens_per_expert_E, dim=0, dtype=torch.int32)
            gate, up, down = (
                (w.to_local() if isinstance(w, DTensor) else w).to(x_RD.dtype).transpose(-2, -1)
                for w in (self.w1_EFD, self.w3_EFD, self.w2_EDF)
            )
            hidden = F.silu(self._grouped_mm(A=x_RD, B_t=gate, offs=ends))
            hidden = hidden * self._grouped_mm(A=x_RD, B_t=up, offs=ends)
            return self._grouped_mm(A=hidden, B_t=down, offs=ends)

    return Experts
