"""`GENERATOR.sample(prompt, n = 8)`, `.play(prompt, env = NAME, ...)`: completions of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import counted
from forgedsl.ir.program import Value
from forgedsl.operations.base import Lowering, Operation, Role, Sizes, Stream, Wanted
from forgedsl.operations.statements import DEFAULT, Form, Statement, Statements, in_file
from forgedsl.records import replace
from forgedsl.services.base import Capability
from forgedsl.settings import Type

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program

SAMPLE = Form(
    owner="service",
    method="sample",
    capability=Capability.SAMPLES,
    params=("prompt", "n"),
    streams=("prompt",),
    counts=("n",),
    doc="samples `n` completions of each prompt, which form a group",
)
PLAY = Form(
    owner="service",
    method="play",
    capability=Capability.SAMPLES,
    params=("prompt", "env", "n", "max_turns"),
    streams=("prompt",),
    counts=("n", "max_turns"),
    doc="plays `n` trajectories of each prompt in an environment, with at most `max_turns` turns. "
    "The completion is everything after the first prompt; `mask` is true for the tokens that "
    "the policy wrote",
)
ENVIRONMENT = Type(base="ref", kinds=("environment",))


class Sample(Operation):
    name = "sample"
    roles = frozenset({Role.SAMPLES})
    span = True
    of_groups = True
    work = "completion"
    item_state = "being sampled"
    waiting = "sampling"
    bound_by = "sampler-bound"
    stream = Stream.ROLLOUT
    owner = "service"
    forms = (SAMPLE, PLAY)

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        before = len(flow.steps)
        good = (
            self._play(flow, statement)
            if statement.form is PLAY
            else flow.resolve_call(self.name, statement)
        )
        if good:
            step = flow.steps[-1]
            settings = {"n": Value(value=1, origin=DEFAULT), **step.settings}
            flow.steps[-1] = replace(step, settings=settings)
        return good and len(flow.steps) > before

    def _play(self, flow: Statements, statement: Statement) -> bool:
        """Resolve `play`: like `sample`, in the environment that `env` names."""
        call = statement.call
        env = next((arg for arg in call.args if arg.name == "env"), None)
        if env is None:
            callee = call.function.text
            help = f"`{callee}(prompt, env = NAME, n = 8, max_turns = 6)`"
            flow.ctx.error("F114", f"`{callee}` needs its env", call.span, help=help)
            return False
        named = flow.reference(env.value, ENVIRONMENT, "`env`")
        rest = replace(call, args=tuple(arg for arg in call.args if arg is not env))
        form = replace(PLAY, params=tuple(p for p in PLAY.params if p != "env"))
        if named is None or not flow.resolve_call(
            self.name, replace(statement, call=rest, form=form)
        ):
            return False
        settings = {**flow.steps[-1].settings, "env": in_file(named, env.value.span)}
        flow.steps[-1] = replace(flow.steps[-1], settings=settings)
        return True

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        return replace(node, root=read[0].root, samplers=frozenset({node.name}))

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        return Wanted(streams=(Stream.PROMPT,), text="prompts")

    def slots(self, node: Node, credits: int) -> int:
        """All credits: the engine batches continuously."""
        return credits

    def sequences(self, node: Node, sizes: Sizes) -> int:
        return sizes.groups(node) * int(node.settings["n"])

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return sizes.groups(node) * int(node.settings["n"]) * sizes.full_length(node)

    def call_text(self, node: Node) -> str:
        return f"{node.target}.sample(n = {node.settings['n']})"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return f"{counted(sizes.groups(node) * int(node.settings['n']), 'completion')} a step"

    def size_text(self, node: Node, sizes: Sizes) -> str:
        prompt, new = sizes.lengths(node)
        size = int(node.settings["n"])
        groups = sizes.groups(node)
        return f"{groups} x {size} completions, prompts <= {prompt}, completions <= {new} tokens"

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
