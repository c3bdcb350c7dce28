"""`ADVANTAGE(score)`, `FILTER(score)`: functions of the program, over groups or a whole step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.operations.base import (
    Level,
    Lowering,
    Operation,
    Reach,
    Role,
    Sizes,
    Stream,
    Wanted,
    groups_text,
)
from forgedsl.operations.statements import Form, Statement, Statements
from forgedsl.records import replace
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program

NUMBERS = (Stream.SCORE, Stream.VALUE)


class Call(Operation):
    name = "call"
    owner = "program"
    roles = frozenset({Role.COMPUTES})
    stream = Stream.VALUE
    level = Level.GROUP
    forms: Sequence[Form] = (Form(owner="advantage"), Form(owner="fn"))

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        function = flow.functions[statement.receiver]
        form = replace(statement.form, params=tuple(field.name for field in function.fields))
        arguments = flow.arguments(replace(statement, form=form))
        if arguments is None:
            return False
        inputs, settings = arguments
        given = {i.argument for i in inputs} | set(settings)
        missing = [f.name for f in function.fields if f.default is None and f.name not in given]
        if missing:
            listed = ", ".join(f"`{m}`" for m in missing)
            callee = statement.call.function.text
            flow.ctx.error("F114", f"`{callee}` needs {listed}", statement.call.span)
            return False
        flow.emit(self.name, statement, inputs, settings)
        return True

    def complete_call(self, node: Node, function: Reach) -> Node:
        level = Level.BATCH if function.whole_step else node.level
        stream = Stream.LOGPROB if function.per_token else node.stream
        return replace(node, level=level, stream=stream)

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        """Accept the kind of stream that fits the declared type of the function's field."""
        fields = program.functions[node.target].fields
        field = next((f for f in fields if f.name == read.argument), None)
        if field is None or not isinstance(field.type, ast.TensorType):
            return None
        axes = ", ".join(axis.text for axis in field.type.axes if isinstance(axis, ast.Path))
        if field.type.dtype == "bool":
            text = f"decisions, [{axes}] bool"
            return Wanted(streams=(Stream.MASK,), text=text, attribute=True)
        streams = (Stream.LOGPROB,) if "T" in axes else NUMBERS
        text = f"numbers, [{axes}] {field.type.dtype}"
        return Wanted(streams=streams, text=text, attribute=True)

    def reader(self, node: Node, read: Input) -> str:
        return node.target

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return "" if Role.DECIDES in node.roles else groups_text(node, sizes)

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"target": to.function(node.target, node.settings)}


class Mask(Call):
    name = "mask"
    owner = "program"
    roles = frozenset({Role.COMPUTES, Role.DECIDES})
    stream = Stream.MASK
    forms = (Form(owner="filter"),)

    def complete_call(self, node: Node, function: Reach) -> Node:
        return replace(node, level=Level.BATCH) if function.whole_step else node

    def check_joins(self, node: Node, by_name: Mapping[str, Node]) -> Iterator[Diagnostic]:
        """Report a filter over a whole step: it selects the groups of the batch, so it cannot see
        the batch."""
        pending = [by_name[i.edge] for i in node.inputs]
        while pending:
            source = pending.pop()
            if source.level is Level.BATCH or source.at_step:
                why = "needs all of them"
                if source.at_step:
                    why = "is computed under the weights of the step"
                about = Label(text=f"over the whole step: `{source.name}`", span=source.span)
                yield error(
                    "F130", "flow-shape",
                    f"`{node.target}` selects the groups of a step and so cannot read "
                    f"`{source.name}`, which {why}",
                    node.span, related=(about,), help="let the filter read the score",
                )  # fmt: skip
                return
            pending += [by_name[i.edge] for i in source.inputs]


OPERATIONS: Sequence[Operation] = (Call(), Mask())
