"""A sampler from outside: answers each prompt with its text in capitals."""

from __future__ import annotations

from typing import Any, Literal

from forgedsl.lower import parts
from forgedsl.lower import services as lowering
from forgedsl.services.base import COMMON, PLACE, SAMPLING, Capability, ServiceKind, row
from forgedsl.settings import COUNT, Kind

SCHEMA = Kind(
    name="service",
    doc="answers in capitals",
    settings=(*COMMON, row("procs", COUNT, 1, PLACE, "processes per host"), *SAMPLING),
)


class UpperService(parts.Sampler):
    kind: Literal["upper"] = "upper"


def lower(decl: Any, mesh: Any, plan: Any, dtype: Any, *, stepped: bool) -> UpperService:
    return UpperService(
        model=lowering.model_of(decl), mesh=lowering.lower_mesh(mesh), dtype=dtype,
        sampling=lowering.lower_sampling(decl),
    )  # fmt: skip


KINDS = (
    ServiceKind(
        name="upper",
        schema=SCHEMA,
        can=frozenset({Capability.SAMPLES}),
        needs=((Capability.SAMPLES, "sampling.max_tokens", "it samples"),),
        measure="sampling.",
    ),
)
SERVICES = (UpperService,)
LOWERED = (("upper", lower),)
