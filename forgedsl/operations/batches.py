"""`DATASET.batches()`: whole batches of conversations, for supervised training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forgedsl.operations.base import Level, Operation, Role, Sizes, Stream
from forgedsl.operations.statements import Form

if TYPE_CHECKING:
    from forgedsl.ir.graph import Node

PREFETCH = 2
"""number of batches prepared in advance"""


class Batches(Operation):
    name = "batches"
    roles = frozenset({Role.SOURCE, Role.SUPERVISED})
    stream = Stream.BATCH
    level = Level.BATCH
    owner = "dataset"
    forms = (
        Form(
            owner="dataset",
            method="batches",
            columns=("chat",),
            doc="draws batches of the dataset's conversations, for supervised training",
        ),
    )

    def slots(self, node: Node, credits: int) -> int:
        return PREFETCH

    def queue(self, node: Node, credits: int) -> int:
        return PREFETCH

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return sizes.batch_tokens

    def call_text(self, node: Node) -> str:
        return f"{node.target}.batches"


OPERATIONS: Sequence[Operation] = (Batches(),)
