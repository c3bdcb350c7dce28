"""Kind `titan`: the actors that run it, and its checkpoints."""

from __future__ import annotations

from pathlib import Path

from forgedsl.lower import job as spec
from forgedsl.runtime.services.base import Kind
from forgedsl.runtime.services.titan.actor import TitanTrainer
from forgedsl.runtime.services.titan.frozen import ReferenceModel
from forgedsl.runtime.services.titan.upstream import checkpoints, value_head
from forgedsl.runtime.services.titan.upstream.model import checkpoint_weights
from forgedsl.runtime.weight_folders import write_folder


def _actor(service: spec.Service) -> type:
    return TitanTrainer if service.trained else ReferenceModel


def _export(
    model: spec.Model, service: spec.Service, folder: Path, checkpoint: Path, target: Path
) -> None:
    assert isinstance(service, spec.TitanService)
    state, head = checkpoint_weights(model, service, folder, checkpoint)
    write_folder(state, target, folder, model.dtype)
    value_head.save(head, target)


KIND = Kind(name="titan", actor=_actor, spoilt=checkpoints.spoilt, export=_export)
