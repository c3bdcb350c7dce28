"""A trainer from outside, without torch: a table of how often each token was rewarded."""

from __future__ import annotations

from typing import Literal

from forgedsl.ir.program import model_of
from forgedsl.job import parts
from forgedsl.services import lowering
from forgedsl.services.base import (
    BATCH,
    COMMON,
    NUM,
    PLACE,
    TEMPERATURE,
    Capability,
    PlannedService,
    ServiceKind,
    row,
)
from forgedsl.settings import COUNT, NON_NEGATIVE, Kind
from forgedsl.sizes.meshes import value

SCHEMA = Kind(
    name="service",
    doc="counts tokens",
    settings=(
        *COMMON,
        row("procs", COUNT, 1, PLACE, "processes per host"),
        row("optimizer.lr", NON_NEGATIVE, 0.1, NUM, "what a token is worth"),
        TEMPERATURE,
        *BATCH,
    ),
)


class TableService(parts.Trainer):
    kind: Literal["table"] = "table"


class Table(ServiceKind):
    def job(self) -> type[TableService]:
        return TableService

    def lowered(self, placed: PlannedService) -> TableService:
        lr = value(placed.decl, "optimizer.lr")
        return TableService(
            model=model_of(placed.decl),
            mesh=lowering.lower_mesh(placed.mesh),
            dtype=placed.dtype,
            optimizer=parts.Optimizer(lr=lr) if placed.trained else None,
            batch=parts.BatchShape(seq_len=placed.seq_len, rows=placed.rows),
        )


KINDS = (
    Table(
        name="table",
        schema=SCHEMA,
        can=frozenset({Capability.TRAINS, Capability.MEASURES}),
        learning=("optimizer.", "batch."),
    ),
)
