"""Router that chooses the experts that the sampler chose (routing replay, arXiv 2510.11370).

    scores of all experts --own top-k, or the sampler's--> experts of a token, and their weights

Only the choice is replayed. The weights of the chosen experts are the trainer's own scores, so
gradients reach the router as without replay. With activation checkpointing the backward pass
computes layers again and must make the same choice, so the routes stay set until it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

OWN = -1
"""in place of an expert number: this token has no route, and the router chooses its experts"""


@dataclass(frozen=True, slots=True)
class InF32:
    """A tensor of a router that generators keep in float32, whatever the dtype of the service.
    `rounded`: its values are those of the service's dtype, as the trainer computes with them, and
    files have it in that dtype. Else it is exact everywhere."""

    value: Tensor
    rounded: bool
    published_dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def device(self) -> torch.device:
        return self.value.device


def as_replaying(config: Any) -> Any:
    """Return the config of a torchtitan router as one that can replay."""
    return _replaying().Config(
        **{f.name: getattr(config, f.name) for f in fields(config) if f.init}
    )


def set_routes(model: nn.Module, routes: Tensor | None) -> None:
    """Let the routers of a model choose `routes`, int16 [R, L, layers, active], from now on. With
    None, they choose experts by their own scores. `OWN` marks tokens without a route."""
    layers: Any = model.layers
    for name, layer in layers.items():
        experts = getattr(layer, "moe", None)
        if experts is not None:
            router = experts.router
            router.given = None if routes is None else routes[:, :, int(name)].long()
            if router.given is not None and router.changed is None:
                router.changed = torch.zeros(2, device=router.given.device)


class ReplayedShare:
    """Share of tokens, over all layers and training passes of an update, for which the trainer
    would have chosen other experts than the sampler."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        layers: Any = model.layers
        self._routers = [
            layer.moe.router for layer in layers.values() if getattr(layer, "moe", None) is not None
        ]
        self._device = device

    def begin(self) -> None:
        """Reset the counts, at the start of an update."""
        for router in self._routers:
            if router.changed is not None:
                router.changed.zero_()

    def changed(self) -> float | None:
        """Return the share (a collective, of all ranks); None if no route was replayed."""
        total = torch.zeros(2, device=self._device)
        for router in self._routers:
            if router.changed is not None:
                total += router.changed
        torch.distributed.all_reduce(total)
        others, all_ = total.tolist()
        return others / all_ if all_ else None


@cache
def _replaying() -> Any:
    """Make the class; call after `select_device`, since this imports torchtitan."""
    from torchtitan.models.common.moe import TokenChoiceTopKRouter

    class ReplayingRouter(TokenChoiceTopKRouter):
        """torchtitan's router; it replays `given`, int64 [R, L, active], if that is set."""

        @dataclass(kw_only=True, slots=True)
        class Config(TokenChoiceTopKRouter.Config):
            pass

        given: Tensor | None = None
        changed: Tensor | None = None
        """counts of replayed tokens, f32 [2]: with experts other than its own choice, and all"""

        def forward(self, x_BLD: Tensor, expert_bias_E: Tensor | None = None) -> Any:
            weights, own, scores = super().forward(x_BLD, expert_bias_E)
            if self.given is None:
                return weights, own, scores
            given = _like(self.given, scores)
            if self.training and self.changed is not None:
                with torch.no_grad():
                    self.changed.add_(_changed(_local(own), _local(given)))
            chosen = torch.where(given == OWN, own, given)
            weights = scores.gather(dim=-1, index=chosen)
            if self.route_norm:
                weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
            return weights * self.route_scale, chosen, scores

    return ReplayingRouter


def _changed(own: Tensor, given: Tensor) -> Tensor:
    """Return two counts, f32 [2]: tokens whose given experts differ from the router's own choice,
    and all tokens with given experts."""
    replayed = (given != OWN).all(-1)
    others = (own.sort(-1).values != given.sort(-1).values).any(-1) & replayed
    return torch.stack((others.sum(), replayed.sum())).float()


def _local(value: Any) -> Tensor:
    found: Tensor = value.to_local() if isinstance(value, DTensor) else value
    return found


def _like(value: Tensor, other: Tensor) -> Tensor:
    """Return `value`, which is whole on every rank, sharded in the way of `other`."""
    if not isinstance(other, DTensor):
        return value
    mesh = other.device_mesh
    whole = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(mesh, other.placements)
