"""All kinds of services at run time, in one tuple.

Processes import this module before their environment variables are set. So it imports nothing that
reads them: no numpy, no torch.
"""

from __future__ import annotations

from forgedsl import extensions
from forgedsl.lower import job as spec
from forgedsl_runtime.services.base import Kind
from forgedsl_runtime.services.titan import kind as titan
from forgedsl_runtime.services.vllm import kind as vllm

KINDS: tuple[Kind, ...] = (titan.KIND, vllm.KIND)


def kind_of(service: spec.Service) -> Kind:
    """Return the kind of a service, built in or from an extension."""
    return _named(service.kind)


def load(kind: str, device: str) -> None:
    """Import what the processes of a kind need."""
    _named(kind).load(device)


def _named(name: str) -> Kind:
    kinds: tuple[Kind, ...] = (*KINDS, *extensions.added("KINDS", Kind, "runtime"))
    return next(kind for kind in kinds if kind.name == name)
