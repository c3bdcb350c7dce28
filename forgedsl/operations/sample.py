"""`GENERATOR.sample(prompt, n = 8)`, `.play(prompt, env = NAME, ...)`: completions of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import counted
from forgedsl.operations.base import Lowering, Operation, Role, Sizes, Stream, Wanted
from forgedsl.records import replace

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program


class Sample(Operation):
    name = "sample"
    roles = frozenset({Role.SAMPLES})
    stream = Stream.ROLLOUT
    produces = "Stream[Group[Rollout]]"
    owner = "service"

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        return replace(node, root=read[0].root, samplers=frozenset({node.name}))

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        return Wanted(streams=(Stream.PROMPT,), text="prompts")

    def slots(self, node: Node, credits: int) -> int:
        """Everything that is alive: the engine batches continuously."""
        return credits

    def sequences(self, node: Node, sizes: Sizes) -> int:
        return sizes.groups(node) * int(node.settings["n"])

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return sizes.groups(node) * int(node.settings["n"]) * sum(sizes.lengths(node))

    def call_text(self, node: Node) -> str:
        return f"{node.target}.sample(n = {node.settings['n']})"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return f"{counted(sizes.groups(node) * int(node.settings['n']), 'completion')} a step"

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        settings = node.settings
        found: dict[str, Any] = {"n": settings["n"]}
        if "env" in settings:
            found |= {"env": settings["env"], "longest": to.longest(node.target)}
        if "max_turns" in settings:
            found["max_turns"] = settings["max_turns"]
        return found

    def timeout(self, node: Node, to: Lowering) -> float:
        turn = to.turn_seconds(node.target)
        return to.play_seconds(node.settings, turn) if "env" in node.settings else turn


OPERATIONS: Sequence[Operation] = (Sample(),)
