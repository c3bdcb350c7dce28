"""All kinds of services, in one tuple."""

from __future__ import annotations

from forgedsl import extensions
from forgedsl.services.base import ServiceKind
from forgedsl.services.openai import facts as openai
from forgedsl.services.titan import facts as titan
from forgedsl.services.vllm import facts as vllm
from forgedsl.settings import Kind, Live

KINDS: tuple[ServiceKind, ...] = (titan.KIND, vllm.KIND, openai.KIND)
SCHEMAS: Live[Kind] = Live(lambda: {kind.name: kind.schema for kind in kinds()})


def kinds() -> tuple[ServiceKind, ...]:
    """Return all kinds, including those of extensions."""
    return (*KINDS, *extensions.added("KINDS", ServiceKind))


def kind_of(name: str | None) -> ServiceKind:
    """Return the kind of this name."""
    for kind in KINDS:
        if kind.name == name:
            return kind
    return next(kind for kind in kinds() if kind.name == name)
