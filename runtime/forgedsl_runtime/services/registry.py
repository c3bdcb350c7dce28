"""All kinds of services at run time, in one tuple."""

from __future__ import annotations

from forgedsl import extensions
from forgedsl.lower import job as spec
from forgedsl_runtime.services.base import Kind
from forgedsl_runtime.services.titan import kind as titan
from forgedsl_runtime.services.vllm import kind as vllm

KINDS: tuple[Kind, ...] = (titan.KIND, vllm.KIND)


def kind_of(service: spec.Service) -> Kind:
    """Return the kind of a service, built in or from an extension."""
    kinds: tuple[Kind, ...] = (*KINDS, *extensions.added("KINDS", Kind, "runtime"))
    return next(kind for kind in kinds if kind.name == service.kind)
