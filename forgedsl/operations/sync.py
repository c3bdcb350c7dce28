"""`sync TRAINER -> GENERATOR { ... }`: sends the trainer's weights to a service that samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.ir.graph import Edge, EdgeKind
from forgedsl.operations.base import CALL_TIMEOUT, Level, Lowering, Operation, Role
from forgedsl.operations.statements import Form
from forgedsl.records import replace

if TYPE_CHECKING:
    from forgedsl.ir.graph import Node

SYNC = Form(
    owner="",
    method="sync",
    shown="sync TRAINER -> GENERATOR { ... }",
    result=False,
    doc="sends the trainer's weights to the generator; [settings](settings.md#sync-in-a-flow)",
)


class Sync(Operation):
    name = "sync"
    roles = frozenset({Role.TRANSFERS})
    span = True
    work = "weight sync"
    item_state = "under way"
    waiting = "weight sync"
    bound_by = "bound by weight sync"
    level = Level.BATCH
    owner = "service"
    forms = (SYNC,)

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        return replace(node, root="")

    def after(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        return frozenset(n.name for n in nodes if Role.UPDATES in n.roles)

    def links(self, node: Node, nodes: Sequence[Node]) -> Iterator[Edge]:
        step = next(n for n in nodes if Role.UPDATES in n.roles)
        yield Edge.plain(step, node, EdgeKind.CONTROL, "version")
        for reader in nodes:
            if Role.SAMPLES in reader.roles and reader.target == node.settings["target"]:
                yield Edge.plain(node, reader, EdgeKind.WEIGHTS, "weights")

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        names = ("every", "overlap", "on_swap", "weights")
        given = {name: node.settings[name] for name in names if name in node.settings}
        return {"to": node.settings["target"], "transport": to.transport(node), **given}

    def timeout(self, node: Node, to: Lowering) -> float:
        return float(node.settings.get("timeout", CALL_TIMEOUT))


OPERATIONS: Sequence[Operation] = (Sync(),)
