"""LoRA adapters (2106.09685) that a vLLM engine adds to its base weights, swapped in memory.

    A and B by name --swap--> vLLM's layers --HeldAdapter--> digests of what they hold

The engine loads the base from the model's folder and never changes it. Requests of the policy use
the published adapter, which is empty until the first publication. vLLM loads adapters from files;
here they come from a publication, so nothing is written. B is published times alpha / rank, and the
engine's own scale is 1. So the engine holds exactly the published bits.
Services that the engine serves besides the policy have slots of their own (`tenants`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from forgedsl.adapters import LAYERS, A, B
from forgedsl.sizes.params import adapter_slot_rank
from forgedsl_runtime.proofs.digest import Digests
from forgedsl_runtime.proofs.publication import Held
from forgedsl_runtime.services.vllm.upstream.held import HeldWeights, Part

POLICY = 1
"""vLLM's number of the policy's adapter; its numbers begin at 1, and 0 is the base"""
INPUTS_LOGGER = "vllm.v1.engine.input_processor"
OTHER_TOKENIZER = (
    "vLLM has deprecated support for supporting different tokenizers for different LoRAs. By "
    "default, vLLM uses base model's tokenizer. If you are using a LoRA with its own tokenizer, "
    "consider specifying `--tokenizer [lora_path]` to use the LoRA tokenizer."
)
"""a warning that every engine with adapters logs; ours have no tokenizers"""


def arguments(rank: int, others: Sequence[int] = (), *, empty: int = 0) -> dict[str, Any]:
    """Return the engine arguments for a published adapter of `rank`, and for adapters of tenants
    with the ranks `others`, on the layers that trainers adapt; with `empty` slots more."""
    return {
        "enable_lora": True,
        "max_loras": 1 + len(others) + empty,
        "max_lora_rank": adapter_slot_rank(max([rank, *others])),
        "lora_target_modules": list(LAYERS),
    }


def request(name: str = "policy", number: int = POLICY) -> Any:
    """Return the object by which a request of vLLM names its adapter. Its path is never opened;
    together with the name it is a part of the keys of vLLM's prefix cache."""
    from vllm.lora.request import LoRARequest

    logging.getLogger(INPUTS_LOGGER).addFilter(lambda record: record.msg != OTHER_TOKENIZER)
    return LoRARequest(lora_name=name, lora_int_id=number, lora_path="(in memory)")


def begin(model: Any, rank: int) -> None:
    """Give a model an adapter of zeros, which changes nothing."""
    manager = model.lora_manager
    _put(manager, manager.create_dummy_lora(POLICY, rank, {}))


def swap(model: Any, weights: Iterable[tuple[str, Tensor]], number: int = POLICY) -> None:
    """Replace adapter `number` of a model by A [rank, in] and B [out, rank] of each layer. A layer
    for which A or B is missing has no adapter from now on."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.lora_weights import LoRALayerWeights

    halves: dict[str, dict[str, Tensor]] = {}
    for name, value in weights:
        half = A if name.endswith(A) else B
        # a tensor of a transport may be overwritten by the next one, and vLLM keeps what it gets
        halves.setdefault(name.removesuffix(half), {})[half] = value.clone()
    layers = {
        layer: LoRALayerWeights(layer, len(found[A]), len(found[A]), found[A], found[B])
        for layer, found in halves.items()
        if len(found) == 2
    }
    rank = max((layer.rank for layer in layers.values()), default=1)
    _put(model.lora_manager, LoRAModel(number, rank, layers))


def _put(manager: Any, adapter: Any) -> None:
    """Replace an adapter in all layers. Running requests continue with the new adapter: they name
    it by its number, which stays the same. There is a slot for each adapter, so vLLM evicts
    none."""
    manager.remove_adapter(adapter.id)
    manager.add_adapter(adapter)
    manager.activate_adapter(adapter.id)


class HeldAdapter:
    """Digests of adapter `number` in the layers of one rank of an engine. The interface is that of
    `HeldWeights`."""

    def __init__(self, model: Any, rank: int, number: int = POLICY) -> None:
        self._manager, self._rank, self._number = model.lora_manager, rank, number

    def begin(self) -> None:
        """Nothing has to be recorded: layers hold A and B as they were published."""

    def take(self) -> list[Held]:
        """Return the digests of A and B of all layers."""
        parts, digests = list(self._parts()), Digests()
        for _, part in parts:
            digests.add(part.value, part.row, part.column)
        return [
            _held(part, value, self._rank, where)
            for (where, part), value in zip(parts, digests.read(), strict=True)
        ]

    def names(self) -> set[str]:
        """Return the published names that this engine has a place for."""
        return {part.name for _, part in self._parts()}

    def _parts(self) -> Iterator[tuple[str, Part]]:
        """Yield A and B of each layer with the places of this rank's share. A fused layer has one
        pair for each of its parts."""
        slot = self._manager.lora_index_to_id.index(self._number)
        for where, layer in self._manager.modules.items():
            names = self._manager.packed_modules.get(where, [where])
            shares = getattr(layer, "output_ids", None) or [layer.tp_rank] * len(names)
            rows, columns = _is(layer, "ColumnParallel"), _is(layer, "RowParallel")
            for name, down, up, share in zip(
                names, layer.lora_a_stacked, layer.lora_b_stacked, shares, strict=True
            ):
                a, b = down[slot, 0], up[slot, 0]
                column = layer.tp_rank * a.shape[1] if columns else 0
                yield where, Part(name=name + A, value=a, column=column)
                yield where, Part(name=name + B, value=b, row=share * len(b) if rows else 0)


def _held(part: Part, value: int, rank: int, where: str) -> Held:
    """Describe a part of A or B, with the shape that it has for `rank`. vLLM may allocate a larger
    rank; the rest is zeros, which add nothing to a digest."""
    rows, columns = part.value.shape
    a = part.name.endswith(A)
    return Held(
        name=part.name, row=part.row, rows=rank if a else rows, column=part.column,
        columns=columns if a else rank, value=value, where=where,
        dtype=str(part.value.dtype).removeprefix("torch."),
    )  # fmt: skip


def _is(layer: Any, kind: str) -> bool:
    return any(kind in cls.__name__ for cls in type(layer.base_layer).__mro__)


@contextmanager
def recording_base(found: list[Held], *, wanted: bool = True) -> Iterator[None]:
    """While an engine starts, add the digests of the weights that it loads to `found`, before vLLM
    packs them; nothing if they are not `wanted`."""
    if not wanted:
        yield
        return
    from vllm.model_executor.model_loader import base_loader

    loader: Any = base_loader
    convert = loader.process_weights_after_loading

    def noting(model: nn.Module, *args: Any) -> None:
        held = HeldWeights(model, in_place=True)
        held.begin()
        found.extend(held.take())
        convert(model, *args)

    with patch.object(loader, "process_weights_after_loading", noting):
        yield
