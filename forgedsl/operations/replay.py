"""`replay(rollout, adv = ...)` makes the batch of a step; `merge(a, b)` joins batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forgedsl.ir.graph import losses_of
from forgedsl.operations.base import Level, Operation, Role, Stream, Wanted
from forgedsl.operations.statements import Form, Statement, Statements
from forgedsl.records import replace
from forgedsl.syntax import ast
from forgedsl.types.flow import place

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program

REPLAY = Form(
    owner="",
    method="replay",
    params=("rollout",),
    streams=("rollout",),
    shown="replay(rollout, NAME = ..., ...)",
    doc="joins rollouts with further named fields that the loss reads, and collects groups until "
    "they fill the batch of a step",
)
MERGE = Form(
    owner="",
    method="merge",
    shown="merge(batch, batch, ...)",
    doc="joins batches of several draws or generators under one loss; they must have the same "
    "fields",
)


class Replay(Operation):
    name = "replay"
    owner = "program"
    roles = frozenset({Role.PACKS})
    stream = Stream.BATCH
    level = Level.BATCH
    forms = (REPLAY, MERGE)

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        if statement.form is MERGE:
            return _merge(flow, statement)
        names = tuple(arg.name for arg in statement.call.args if arg.name is not None)
        form = replace(statement.form, params=("rollout", *names))
        return flow.resolve_call(self.name, replace(statement, form=form))

    def node(self, node: Node) -> Node:
        return replace(node, target="")

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        """Accept rollouts, and numbers for the fields of the loss."""
        if read.argument == "rollout":
            help = f"`rollout.keep({read.edge})` returns the kept rollouts"
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
    """True if a loss of the flow declares this field with dtype bool."""
    fields = (f for name in losses_of(program) for f in program.functions[name].fields)
    return any(
        f.name == read.argument and isinstance(f.type, ast.TensorType) and f.type.dtype == "bool"
        for f in fields
    )


def _merge(flow: Statements, statement: Statement) -> bool:
    """Resolve `merge`. It makes no node: the step reads all merged batches."""
    call = statement.call
    params = tuple(place("batch", i) for i in range(len(call.args)))
    found = flow.arguments(replace(statement, form=replace(MERGE, params=params)))
    if found is None:
        return False
    inputs, constants = found
    if statement.name is None:
        help = "give it a name: `both = merge(...)`"
        flow.ctx.error("F119", "the result of `merge` is not used", call.span, help=help)
        return False
    if constants or len(inputs) < 2:
        help = "`merge(replay(a, ...), replay(b, ...))`"
        flow.ctx.error("F114", "`merge` needs at least two batches", call.span, help=help)
        return False
    flow.read |= {i.edge for i in inputs}
    flow.merged[statement.name] = tuple(p for i in inputs for p in flow.merged.get(i.edge, (i,)))
    return True


OPERATIONS: Sequence[Operation] = (Replay(),)
