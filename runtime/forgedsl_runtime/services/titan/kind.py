"""Kind `titan`: the actors that run it, and its checkpoints.

Functions import what they need: torch and torchtitan take seconds, and processes start before them.
"""

from __future__ import annotations

from pathlib import Path

from forgedsl.lower import job as spec
from forgedsl_runtime.services.base import Kind


def _load(device: str) -> None:
    from forgedsl_runtime.services.titan import actor  # noqa: F401


def _actor(service: spec.Service) -> type:
    from forgedsl_runtime.services.titan.actor import TitanTrainer
    from forgedsl_runtime.services.titan.frozen import ReferenceModel

    return TitanTrainer if service.trained else ReferenceModel


def _spoilt(folder: Path) -> str:
    from forgedsl_runtime.services.titan.upstream import checkpoints

    return checkpoints.spoilt(folder)


def _export(
    model: spec.Model, service: spec.Service, folder: Path, checkpoint: Path, target: Path
) -> None:
    from forgedsl_runtime.services.titan.upstream import value_head
    from forgedsl_runtime.services.titan.upstream.model import checkpoint_weights
    from forgedsl_runtime.weight_folders import write_folder

    assert isinstance(service, spec.TitanService)
    state, head = checkpoint_weights(model, service, folder, checkpoint)
    write_folder(state, target, folder, model.dtype)
    value_head.save(head, target)


def _export_adapter(
    model: spec.Model, service: spec.Service, folder: Path, checkpoint: Path, target: Path
) -> None:
    from forgedsl_runtime.services.titan.upstream.model import checkpoint_adapters
    from forgedsl_runtime.weight_folders import write_adapter

    assert isinstance(service, spec.TitanService)
    assert service.lora is not None
    layers = checkpoint_adapters(model, service, folder, checkpoint)
    source = model.source
    base = source.id if source.kind == "hf" else source.path if source.kind == "local" else ""
    write_adapter(layers, target, base=base, lora=service.lora)


KIND = Kind(
    name="titan", actor=_actor, load=_load, spoilt=_spoilt, export=_export,
    export_adapter=_export_adapter,
)  # fmt: skip
