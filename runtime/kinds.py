"""Table of service kinds and the actors that run them.

A kind whose class in a job is a `Sampler` has each replica on a mesh of its own. Its client is
services/generator.py, and `actors/generator.py` shows what its actors are asked. A kind whose class
is a `Trainer` is a model on one mesh of ranks. Its client is services/trainer.py, and
`actors/trainer.py` shows what its actors are asked. Rehearsals need no code of a kind: they stand
in for samplers and trainers with the times that the plan estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forgedsl import extensions
from forgedsl.lower import job as spec
from forgedsl.runtime.actors.generator import Generator
from forgedsl.runtime.actors.trainer import ReferenceModel, TitanTrainer
from forgedsl.runtime.upstream import checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of service. `actor` returns the class of its processes. `spoilt` checks the files of
    its checkpoint: it returns what is wrong, or ""."""

    name: str
    actor: Callable[[spec.Service], type]
    spoilt: Callable[[Path], str] = lambda folder: ""


def _titan(service: spec.Service) -> type:
    return TitanTrainer if getattr(service, "optimizer", None) is not None else ReferenceModel


KINDS: tuple[Kind, ...] = (
    Kind(name="titan", actor=_titan, spoilt=checkpoints.spoilt),
    Kind(name="vllm", actor=lambda service: Generator),
)


def kind_of(service: spec.Service) -> Kind:
    """Return the kind of a service, built in or from an extension."""
    kinds: tuple[Kind, ...] = (*KINDS, *extensions.added("KINDS", Kind, "runtime"))
    return next(kind for kind in kinds if kind.name == service.kind)
