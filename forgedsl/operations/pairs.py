"""`DATASET.pairs(n)`: draws preference pairs (chosen and rejected answer) for a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import counted
from forgedsl.operations.base import Level, Lowering, Operation, Role, Sizes, Stream
from forgedsl.operations.statements import Form

if TYPE_CHECKING:
    from forgedsl.ir.graph import Node


class Pairs(Operation):
    name = "pairs"
    roles = frozenset({Role.SOURCE, Role.PAIRS})
    stream = Stream.PAIR
    level = Level.GROUP
    owner = "dataset"
    forms = (
        Form(
            owner="dataset",
            method="pairs",
            params=("count",),
            counts=("count",),
            columns=("chosen", "rejected"),
            doc="draws `count` pairs of a chosen and a rejected answer for each step",
        ),
    )

    def sequences(self, node: Node, sizes: Sizes) -> int:
        return 2 * sizes.groups(node)

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return 2 * int(node.settings["count"]) * sizes.row_tokens

    def call_text(self, node: Node) -> str:
        return f"{node.target}.pairs({node.settings['count']})"

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return counted(node.settings["count"], "pair")

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"count": node.settings["count"]}


OPERATIONS: Sequence[Operation] = (Pairs(),)
