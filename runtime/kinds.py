"""What runs each kind of service, in one tuple.

A kind whose class in a job is a `Sampler` has each replica on a mesh of its own and speaks with
services/generator.py (`actors/generator.py` shows what it is asked); any other is a model on one
mesh, behind services/titan.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forgedsl.lower import job as spec
from forgedsl.runtime.actors.generator import Generator
from forgedsl.runtime.actors.trainer import ReferenceModel, TitanTrainer
from forgedsl.runtime.actors.twins import StubGenerator, StubTitan


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`actor` is the class of its processes, `twin` in a rehearsal, where it only takes time."""

    name: str
    actor: Callable[[spec.Service], type]
    twin: type


def _titan(service: spec.Service) -> type:
    return TitanTrainer if getattr(service, "optimizer", None) is not None else ReferenceModel


KINDS: tuple[Kind, ...] = (
    Kind(name="titan", actor=_titan, twin=StubTitan),
    Kind(name="vllm", actor=lambda service: Generator, twin=StubGenerator),
)


def kind_of(service: spec.Service) -> Kind:
    """What runs a service."""
    return next(kind for kind in KINDS if kind.name == service.kind)
