"""A trainer from outside, without torch: a table of how often each token was rewarded."""

from __future__ import annotations

from typing import Any, Literal

from forgedsl.lower import parts
from forgedsl.lower import services as lowering
from forgedsl.plan.meshes import value
from forgedsl.services.base import (
    BATCH,
    COMMON,
    NUM,
    PLACE,
    TEMPERATURE,
    Capability,
    ServiceKind,
    row,
)
from forgedsl.settings import COUNT, POSITIVE, Kind

SCHEMA = Kind(
    name="service",
    doc="counts tokens",
    settings=(
        *COMMON,
        row("procs", COUNT, 1, PLACE, "processes per host"),
        row("optimizer.lr", POSITIVE, 0.1, NUM, "what a token is worth"),
        TEMPERATURE,
        *BATCH,
    ),
)


class TableService(parts.Trainer):
    kind: Literal["table"] = "table"


def lower(decl: Any, mesh: Any, plan: Any, dtype: Any, *, stepped: bool) -> TableService:
    return TableService(
        model=lowering.model_of(decl), mesh=lowering.lower_mesh(mesh), dtype=dtype,
        optimizer=parts.Optimizer(lr=value(decl, "optimizer.lr")) if stepped else None,
        batch=parts.BatchShape(
            seq_len=plan.rows[decl.name].seq_len, rows=plan.rows[decl.name].rows
        ),
    )  # fmt: skip


KINDS = (
    ServiceKind(
        name="table",
        schema=SCHEMA,
        can=frozenset({Capability.TRAINS, Capability.MEASURES}),
        learning=("optimizer.", "batch."),
    ),
)
SERVICES = (TableService,)
LOWERED = (("table", lower),)
