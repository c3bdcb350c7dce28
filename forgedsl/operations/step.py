"""`replay(rollout, ...)`, `TRAINER.step(batch, loss = NAME)`, `sync A -> B`: updates of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.ir.graph import Edge, EdgeKind, losses_of
from forgedsl.operations.base import (
    CALL_TIMEOUT,
    Level,
    Lowering,
    Operation,
    Role,
    Sizes,
    Stream,
    Wanted,
)
from forgedsl.operations.logprobs import MODEL_TIMEOUT
from forgedsl.records import replace
from forgedsl.schema.flow import place
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program


class Replay(Operation):
    name = "replay"
    roles = frozenset({Role.PACKS})
    stream = Stream.BATCH
    level = Level.BATCH
    produces = "Batch"

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        """The rollouts of a batch, and the fields that a loss reads beside them."""
        if read.argument == "rollout":
            help = f"`rollout.keep({read.edge})` gives the rollouts that it keeps"
            streams = (Stream.ROLLOUT, Stream.PAIR)
            return Wanted(streams=streams, text="rollouts or preference pairs", help=help)
        masks = [Stream.MASK] if _is_bool(program, read) else []
        return Wanted(
            streams=(Stream.SCORE, Stream.VALUE, Stream.LOGPROB, *masks),
            text="numbers",
            attribute=True,
        )

    def reader(self, node: Node, read: Input) -> str:
        return read.argument.replace("rollout", "replay")


def _is_bool(program: Program, read: Input) -> bool:
    """Whether the loss of the flow declares this field as bool."""
    fields = (f for name in losses_of(program) for f in program.functions[name].fields)
    return any(
        f.name == read.argument and isinstance(f.type, ast.TensorType) and f.type.dtype == "bool"
        for f in fields
    )


class Step(Operation):
    name = "step"
    roles = frozenset({Role.UPDATES})
    level = Level.BATCH
    produces = "weights"
    owner = "service"

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        help = f"`batch = replay({read.edge}, ...)`"
        return Wanted(streams=(Stream.BATCH,), text="a batch", help=help)

    def call_text(self, node: Node) -> str:
        settings = node.settings
        updates = "".join(
            f", {key} = {settings[key]}" for key in ("epochs", "minibatches") if settings[key] > 1
        )
        losses = ", ".join(loss for loss, _ in node.terms)
        return f"{node.target}.step({losses}{updates})"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return f"microbatches of {sizes.rows} x {sizes.row_tokens} tokens"

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        settings = node.settings
        further = range(1, len(node.inputs))
        return {
            "loss": settings["loss"],
            "beside": tuple(settings.get(place("loss", i), "") for i in further),
            "epochs": settings["epochs"],
            "minibatches": settings["minibatches"],
        }

    def timeout(self, node: Node, to: Lowering) -> float:
        return MODEL_TIMEOUT


class Sync(Operation):
    name = "sync"
    roles = frozenset({Role.TRANSFERS})
    level = Level.BATCH
    owner = "service"

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        return replace(node, root="")

    def after(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        return frozenset(n.name for n in nodes if n.op == "step")

    def links(self, node: Node, nodes: Sequence[Node]) -> Iterator[Edge]:
        step = next(n for n in nodes if n.op == "step")
        yield Edge.plain(step, node, EdgeKind.CONTROL, "version")
        for reader in nodes:
            if reader.op == "sample" and reader.target == node.settings["target"]:
                yield Edge.plain(node, reader, EdgeKind.WEIGHTS, "weights")

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        names = ("every", "overlap", "on_swap")
        given = {name: node.settings[name] for name in names if name in node.settings}
        return {"to": node.settings["target"], "transport": to.transport(node), **given}

    def timeout(self, node: Node, to: Lowering) -> float:
        return float(node.settings.get("timeout", CALL_TIMEOUT))


OPERATIONS: Sequence[Operation] = (Replay(), Step(), Sync())
