"""`DATASET.draw(n)`, `.pairs(n)`, `.batches()`: the statements that begin the groups of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import counted
from forgedsl.operations.base import Level, Lowering, Operation, Role, Sizes, Stream

if TYPE_CHECKING:
    from forgedsl.ir.graph import Node

PREFETCH = 2


class _Groups(Operation):
    level = Level.GROUP
    owner = "dataset"

    def call_text(self, node: Node) -> str:
        weight = f", weight = {node.settings['weight']}" if "weight" in node.settings else ""
        return f"{node.target}.{node.op}({node.settings['count']}{weight})"

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        found: dict[str, Any] = {"count": node.settings["count"]}
        if "weight" in node.settings:
            found["weight"] = to.scalar(node.settings["weight"])
            found["observe"] = node.settings["observe"]
        return found


class Draw(_Groups):
    name = "draw"
    roles = frozenset({Role.SOURCE, Role.PROMPTS})
    stream = Stream.PROMPT
    produces = "Stream[Prompt]"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return f"{counted(sizes.groups(node), 'prompt')} a step"


class Pairs(_Groups):
    name = "pairs"
    roles = frozenset({Role.SOURCE, Role.PAIRS})
    stream = Stream.PAIR
    produces = "Stream[Pair]"

    def sequences(self, node: Node, sizes: Sizes) -> int:
        return 2 * sizes.groups(node)

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return 2 * int(node.settings["count"]) * sizes.row_tokens


class Batches(Operation):
    name = "batches"
    roles = frozenset({Role.SOURCE, Role.SUPERVISED})
    stream = Stream.BATCH
    level = Level.BATCH
    produces = "Stream[Batch]"
    owner = "dataset"

    def slots(self, node: Node, credits: int) -> int:
        return PREFETCH

    def queue(self, node: Node, credits: int) -> int:
        return PREFETCH

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return sizes.batch_tokens

    def call_text(self, node: Node) -> str:
        return f"{node.target}.batches"


OPERATIONS: Sequence[Operation] = (Draw(), Batches(), Pairs())
