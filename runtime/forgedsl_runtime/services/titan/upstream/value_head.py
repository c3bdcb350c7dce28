"""A value head on torchtitan's model: one number per hidden state.

    model --attach--> model.value_head     folder/value_head/model.safetensors --load--> weights

It is part of the model, so FSDP, the optimizer and checkpoints include it. It is not among the
weights under Hugging Face names: generators never get it. It starts at 0 if the model's folder has
none. Part of the adapter in `model.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NAME = "value_head"
FILE = f"{NAME}/model.safetensors"
"""in its own folder, because model loaders read every weight file beside the config"""


class ValueHead(nn.Module):
    """Computes values [N] from hidden [N, H], in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.float() @ self.weight.float() + self.bias.float()


def attach(module: nn.Module, width: int) -> None:
    """Add a value head to a model that is being built."""
    module.add_module(NAME, ValueHead(width))


def start(module: nn.Module) -> None:
    """Set the initial values of the head, if there is one."""
    with torch.no_grad():
        for value in _parameters(module).values():
            value.zero_()


def state(module: nn.Module) -> dict[str, Tensor]:
    """Return the head's weights as this rank holds them; empty without a head."""
    return dict(_parameters(module))


def load(module: nn.Module, folder: Path) -> None:
    """Load the head from a model's folder, if both exist."""
    from safetensors.torch import load_file
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not _parameters(module) or not (folder / FILE).exists():
        return
    saved: dict[str, Tensor] = load_file(folder / FILE)
    with torch.no_grad():
        for name, value in _parameters(module).items():
            whole = saved[name].to(value.device, value.dtype)
            if isinstance(value, DTensor):
                whole = distribute_tensor(whole, value.device_mesh, value.placements)
            value.copy_(whole)


def save(head: dict[str, Tensor], folder: Path) -> None:
    """Write the whole weights of a head to the folder of its model."""
    from safetensors.torch import save_file

    if head:
        (folder / FILE).parent.mkdir(exist_ok=True)
        save_file({name: value.contiguous() for name, value in head.items()}, folder / FILE)
        (folder / FILE).chmod(0o644)


def _parameters(module: nn.Module) -> dict[str, Any]:
    head = getattr(module, NAME, None)
    return {} if head is None else dict(head.named_parameters())
