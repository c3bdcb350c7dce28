"""`TITAN.logprobs(rollout)`, `.values(rollout)`: log-probs or values of existing tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.operations.base import Lowering, Operation, Role, Sizes, Stream, Wanted, groups_text
from forgedsl.operations.statements import Form, Statement, Statements, in_file
from forgedsl.records import replace
from forgedsl.services.base import Capability

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program

MODEL_TIMEOUT = 1800.0
"""timeout in seconds of a step or of log-probs; the first call may compile"""

LOGPROBS = Form(
    owner="service",
    method="logprobs",
    capability=Capability.MEASURES,
    params=("rollout",),
    streams=("rollout",),
    doc="computes log-probs of the rollout's tokens, `[B, T]`. A trained service computes them "
    "under the weights at the start of the step",
)
VALUES = Form(
    owner="service",
    method="values",
    capability=Capability.MEASURES,
    params=("rollout",),
    streams=("rollout",),
    doc="computes the output of the value head of `titan(value_head(policy))` for the rollout's "
    "tokens, `[B, T]`. A trained service computes it under the weights at the start of the "
    "step",
)


class Logprobs(Operation):
    name = "logprobs"
    roles = frozenset({Role.MEASURES})
    span = True
    of_groups = True
    work = "group"
    item_state = "waiting for log-probabilities"
    waiting = "log-probabilities"
    bound_by = "bound by log-probs"
    stream = Stream.LOGPROB
    owner = "service"
    forms = (LOGPROBS, VALUES)

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        if statement.form is LOGPROBS:
            return flow.resolve_call(self.name, statement)
        with_head = flow.value_head_declaration(statement.receiver)
        if with_head is not None:
            message = f"`{statement.receiver}` has no value head"
            flow.ctx.error("F119", message, statement.call.span, help=f"`{with_head}`")
            return False
        good = flow.resolve_call(self.name, statement)
        if good:
            step = flow.steps[-1]
            settings = {**step.settings, "values": in_file(True, statement.span)}
            flow.steps[-1] = replace(step, settings=settings)
        return good

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        trained = any(n.target == node.target for n in all_ if Role.UPDATES in n.roles)
        node = super().typed(replace(node, at_step=trained), read, nodes, all_)
        return replace(node, level=read[0].level) if read else node

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        streams = (Stream.ROLLOUT, Stream.PAIR, Stream.BATCH)
        return Wanted(streams=streams, text="rollouts or preference pairs")

    def reader(self, node: Node, read: Input) -> str:
        return f"{node.target}.{'values' if node.values else 'logprobs'}"

    def slots(self, node: Node, credits: int) -> int:
        """Return the slots of a node: all credits for a frozen model, whose client sends the whole
        queue in one call.
        """
        return 1 if node.at_step else credits

    def call_text(self, node: Node) -> str:
        return f"{node.target}.logprobs"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return "under the weights before the step" if node.at_step else ""

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return groups_text(node, sizes, longest=True)

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"at_step": node.at_step, "values": node.values}

    def timeout(self, node: Node, to: Lowering) -> float:
        return MODEL_TIMEOUT


OPERATIONS: Sequence[Operation] = (Logprobs(),)
