"""GLM-4.5 on torchtitan: Qwen3's layers with a shared expert, sigmoid scores and a correction bias.

The bias is torchtitan's own (`expert_bias_E`), in float32. No hook changes it here, so it stays as
published. The published models compute scores in float32 whatever their dtype is. vLLM therefore
keeps router and bias in float32, so they are sent to it as such (`InF32`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.families import qwen3_moe
from forgedsl_runtime.services.titan.upstream.families.decoder import adapter_class, decoder_spec
from forgedsl_runtime.services.titan.upstream.router import InF32

GATE, CORRECTION = ".mlp.gate.weight", ".mlp.gate.e_score_correction_bias"
"""ends of the names of a router's tensors in files"""


def build(dims: Dims) -> Any:
    """Return the ModelSpec of a GLM-4.5 model."""
    from torchtitan.models.qwen3 import Qwen3TransformerBlock, model_registry

    like = model_registry("debugmodel_moe")
    return decoder_spec(
        dims, like, Qwen3TransformerBlock, feed_forward=_experts, adapter=_adapter()
    )


def _experts(dims: Dims) -> dict[str, Any]:
    found = qwen3_moe.experts(dims)
    router = found["moe"].router
    router.gate = _gate().Config(
        **{f.name: getattr(router.gate, f.name) for f in fields(router.gate) if f.init}
    )
    return found


@cache
def _gate() -> Any:
    from torchtitan.models.common.linear import Linear

    class Gate(Linear):
        """Router's linear layer; it multiplies in float32."""

        @dataclass(kw_only=True, slots=True)
        class Config(Linear.Config):
            pass

        def forward(self, input: Tensor) -> Tensor:
            with torch.autocast(input.device.type, enabled=False):
                return F.linear(input.float(), self.weight.float())

    return Gate


@cache
def _adapter() -> Any:
    base: Any = adapter_class()

    class Adapter(base):
        """Adapter with the names of shared experts and of the correction bias."""

        def __init__(self, model_config: Any, hf_assets_path: str | None) -> None:
            super().__init__(model_config, hf_assets_path)
            for projection, own in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                shared = f"model.layers.{{}}.mlp.shared_experts.{projection}_proj.weight"
                self.from_hf_map[shared] = f"layers.{{}}.moe.shared_experts.{own}.weight"
            self.from_hf_map[f"model.layers.{{}}{CORRECTION}"] = "layers.{}.moe.expert_bias_E"

        def published(self, state: dict[str, Any]) -> dict[str, Any]:
            return {
                name: InF32(value, rounded=name.endswith(GATE))
                if name.endswith((GATE, CORRECTION))
                else value
                for name, value in self.to_hf(state).items()
            }

    return Adapter
