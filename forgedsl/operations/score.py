"""`RUBRIC(rollout, prompt.target)`, `REWARD(...)`: scores each completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.operations.base import (
    CALL_TIMEOUT,
    Lowering,
    Operation,
    Role,
    Sizes,
    Stream,
    Wanted,
    groups_text,
)
from forgedsl.operations.statements import Form

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program


class Score(Operation):
    name = "score"
    owner = "program"
    roles = frozenset({Role.SCORES})
    span = True
    of_groups = True
    work = "completion"
    item_state = "being scored"
    waiting = "rewards"
    bound_by = "reward-bound"
    remedy = (
        "fix the reward, and try it with a few answers first; `on_error` and `max_failed` do not "
        "help if it always fails"
    )
    stream = Stream.SCORE
    forms = (
        Form(
            owner="rubric",
            params=("rollout", "target"),
            streams=("rollout",),
            shown="NAME(rollout, target)",
            doc="scores each completion by the rubric or reward of this name: `grade(rollout, "
            "prompt.target)`",
        ),
        Form(owner="reward", params=("rollout", "target"), streams=("rollout",)),
    )

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        if read.argument == "rollout":
            return Wanted(streams=(Stream.ROLLOUT,), text="rollouts")
        help = "`prompt.target`, for example"
        return Wanted(streams=(), text="a value of the prompt", attribute=True, help=help)

    def reader(self, node: Node, read: Input) -> str:
        return node.target

    def slots(self, node: Node, credits: int) -> int:
        """All credits: rewards start as rollouts finish; the process pool is the limit."""
        return credits

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return groups_text(node, sizes)

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"compares": to.compares(node.target)}

    def timeout(self, node: Node, to: Lowering) -> float:
        return max(CALL_TIMEOUT, to.timeout_of(node.target))


OPERATIONS: Sequence[Operation] = (Score(),)
