"""A sampler from outside: answers each prompt with its text in capitals."""

from __future__ import annotations

from typing import Literal

from forgedsl.ir.program import model_of
from forgedsl.job import parts
from forgedsl.services import lowering
from forgedsl.services.base import (
    COMMON,
    PLACE,
    SAMPLING,
    Capability,
    PlannedService,
    ServiceKind,
    row,
)
from forgedsl.settings import COUNT, Kind

SCHEMA = Kind(
    name="service",
    doc="answers in capitals",
    settings=(*COMMON, row("procs", COUNT, 1, PLACE, "processes per host"), *SAMPLING),
)


class UpperService(parts.Sampler):
    kind: Literal["upper"] = "upper"


class Upper(ServiceKind):
    def job(self) -> type[UpperService]:
        return UpperService

    def lowered(self, placed: PlannedService) -> UpperService:
        return UpperService(
            model=model_of(placed.decl),
            mesh=lowering.lower_mesh(placed.mesh),
            dtype=placed.dtype,
            sampling=lowering.lower_sampling(placed.decl),
        )


KINDS = (
    Upper(
        name="upper",
        schema=SCHEMA,
        can=frozenset({Capability.SAMPLES}),
        needs=((Capability.SAMPLES, "sampling.max_tokens", "it samples"),),
        measure="sampling.",
    ),
)
