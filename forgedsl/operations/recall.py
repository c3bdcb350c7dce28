"""Replay buffer: `BUFFER.put(rollout, adv = adv)` stores groups, `BUFFER.draw(8)` draws them later.

There is no data edge between the two: a buffer closes a cycle, as `sync` does. Mistakes are F113
and F130.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Diagnostic, Label, counted, error
from forgedsl.ir.graph import Edge, EdgeKind
from forgedsl.operations.base import (
    Declaration,
    Level,
    Lowering,
    Operation,
    Role,
    Sizes,
    Stream,
    Wanted,
)
from forgedsl.operations.statements import Form, Statement, Statements
from forgedsl.records import replace
from forgedsl.settings import COUNT, REQUIRED, Kind, Setting
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import FlowStep, Program

BUFFER = Declaration(
    kind=Kind(
        name="buffer",
        doc="replay buffer: stores groups that were trained on, so that later steps can train on "
            "them again",
        settings=(
            Setting(name="groups", type=COUNT, default=REQUIRED, impact="numerics",
                    doc="maximum number of stored groups; the oldest are removed first"),
            Setting(name="max_age", type=COUNT, default=REQUIRED, impact="numerics",
                    doc="maximum age of a drawn group, in policy versions; older groups are "
                        "removed"),
        ),
    ),
    shown="buffer good { groups = 256, max_age = 16 }",
    heading="Buffers",
    program="Buffers: groups that are trained on again",
    section="buffers",
    fewer="groups",
)  # fmt: skip
KEPT = (Stream.SCORE, Stream.VALUE, Stream.LOGPROB, Stream.MASK)
"""streams that a buffer can store besides rollouts"""
TOKEN_BYTES, FIELD_BYTES = 9, 4
"""bytes per token: of its id, log-prob and mask; of each field with a number per token"""


OWN = ("num_tokens", "truncated", "mask")
"""parts that every rollout has, including drawn ones"""
TAKEN = ("behavior", "response", *OWN)
"""reserved names, which stored fields cannot have"""


class Put(Operation):
    name = "put"
    declares = BUFFER
    forms = (
        Form(
            owner="buffer",
            method="put",
            params=("rollout", "keep"),
            streams=("rollout",),
            result=False,
            shown="buffer.put(rollout, keep = ..., NAME = ..., ...)",
            doc="stores the groups of a step for later steps: the rollout and, by name, further "
            "fields that a loss reads. With `keep`, only groups for which this filter is true",
        ),
    )
    roles = frozenset({Role.STORES})
    level = Level.BATCH
    owner = "buffer"

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        call, callee = statement.call, statement.call.function.text
        if statement.name is not None:
            help = f"write `{callee}(...)` without a name"
            flow.ctx.error("F119", "`put` has no result", call.span, help=help)
            return False
        given = tuple(arg.name for arg in call.args if arg.name not in (None, "rollout"))
        first = [arg for arg in call.args if arg.name in (None, "rollout")]
        for extra in first[1:]:
            message = f"the second value of `{callee}` needs a name"
            text = extra.value.text if isinstance(extra.value, ast.Path) else "..."
            help = (
                f"name each field that is stored with the rollouts: `{text.split('.')[-1]} = "
                f"{text}`"
            )
            flow.ctx.error("F114", message, extra.span, help=help)
        form = replace(
            statement.form,
            params=("rollout", *map(str, given)),
            example=f"{callee}(rollout, adv = adv)",
        )
        named = replace(statement, name=f"{statement.receiver}.put", form=form)
        return not first[1:] and flow.resolve_call(self.name, named)

    def check_flow(self, ctx: Any, steps: Sequence[FlowStep], with_errors: Set[str]) -> None:
        mine = _statement_by_buffer(ctx, steps, self.name, "is filled")
        drawn = {step.receiver for step in steps if step.op == "recall"}
        for put in (step for step in steps if step.op == "put"):
            _check_put(ctx, steps, put)
        for buffer in mine.keys() - drawn - with_errors:
            message = f"groups are put into `{buffer}`, but none are drawn from it"
            ctx.error("F119", message, mine[buffer].span, help=f"`old = {buffer}.draw(8)`")

    def slim(self, node: Node, nodes: Sequence[Node]) -> Node:
        """Drop the fields that no draw reads."""
        draws = {n.name for n in nodes if n.op == "recall" and n.target == node.target}
        read = {i.attribute for n in nodes for i in n.inputs if i.edge in draws}
        kept = (i for i in node.inputs if i.argument in ("rollout", "keep", *read))
        return replace(node, inputs=tuple(kept))

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        if read.argument == "rollout":
            return Wanted(streams=(Stream.ROLLOUT,), text="rollouts", help="rollouts of a sampler")
        if read.argument == "keep":
            help = "declare it with `filter NAME(score: [G] f32) -> bool = ...`"
            return Wanted(streams=(Stream.MASK,), text="the decisions of a filter", help=help)
        help = "a field that a loss reads later: `adv = rl.group_norm(score)`"
        return Wanted(streams=KEPT, text="numbers", attribute=True, help=help)

    def check(
        self, program: Program, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Iterator[Diagnostic]:
        """Report stored log-probs of the trainer: they belong to the weights of one step."""
        for read in node.inputs:
            source = by_name[read.edge]
            if source.at_step:
                call = "values" if source.values else "logprobs"
                yield error(
                    "F130", "flow-shape",
                    f"`{read.argument}` would be computed with the weights of the step that "
                    "stores it",
                    read.span, related=(Label(text="computed here", span=source.span),),
                    help=f"compute it for the drawn groups: `{source.target}.{call}(old)`",
                )  # fmt: skip

    def call_text(self, node: Node) -> str:
        return f"{node.target}.put"


class Recall(Operation):
    name = "recall"
    declares = BUFFER
    roles = frozenset({Role.RECALLS})
    stream = Stream.ROLLOUT
    owner = "buffer"
    method = "draw"
    forms = (
        Form(
            owner="buffer",
            method="draw",
            params=("count",),
            counts=("count",),
            doc="draws at most `count` groups of earlier steps for each step, none twice and none "
            "older than `max_age`. Fields stored with the rollout are attributes, such as "
            "`old.adv`",
        ),
    )

    def check_flow(self, ctx: Any, steps: Sequence[FlowStep], with_errors: Set[str]) -> None:
        mine = _statement_by_buffer(ctx, steps, self.name, "is drawn from")
        filled = {step.receiver for step in steps if step.op == "put"}
        for buffer in mine.keys() - filled - with_errors:
            name = mine[buffer].name
            message = f"`{name}` is drawn from `{buffer}`, but no groups are put there"
            help = f"`{buffer}.put(rollout, adv = adv)`"
            ctx.error("F114", message, mine[buffer].span, help=help)

    def stands_for(self, step: FlowStep, flow: Iterable[FlowStep]) -> FlowStep | None:
        return next((s for s in flow if s.op == "put" and s.receiver == step.receiver), None)

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        """Take the samplers from the rollouts that are put."""
        rollout = next(i.edge for i in _put(node, all_).inputs if i.argument == "rollout")
        return replace(node, root=node.name, samplers=nodes[rollout].samplers)

    def after(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        put = _put(node, nodes)
        return frozenset(i.edge for i in put.inputs if i.argument == "rollout")

    def links(self, node: Node, nodes: Sequence[Node]) -> Iterator[Edge]:
        yield Edge.plain(_put(node, nodes), node, EdgeKind.REPLAY, node.target)

    def needs(self, node: Node, nodes: Sequence[Node]) -> Iterable[str]:
        return (_put(node, nodes).name,)

    def parts(
        self, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Mapping[str, Stream | None]:
        """Return the fields stored with the rollouts, and their streams. The stream is None for a
        part of a prompt or rollout, and for a mistake that is reported at the `put`.
        """
        reads = (i for i in _put(node, nodes).inputs if i.argument not in ("rollout", "keep"))
        streams = {i.argument: None if i.attribute else by_name[i.edge].stream for i in reads}
        kept = {name: stream if stream in KEPT else None for name, stream in streams.items()}
        return kept | dict.fromkeys(OWN)

    def check(
        self, program: Program, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Iterator[Diagnostic]:
        yield from self._too_many(program, node, nodes, by_name)
        draws = {n.name for n in nodes if n.op == "recall"}
        for reader in nodes:
            if node.name in (by_name[i.edge].root for i in reader.inputs):
                yield from _check_reader_of_draw(reader, by_name)
        if node.name == min(draws):  # reported once, for the first of all draws
            yield from _no_new_rollouts(nodes, by_name, draws)

    def _too_many(
        self, program: Program, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Iterator[Diagnostic]:
        """Report a draw that can never be filled: the buffer is too small, or groups get too old
        before enough have been put."""
        decl, count = program.declared["buffer"][node.target], int(node.settings["count"])
        groups, age = (decl.settings[key].value for key in ("groups", "max_age"))
        if not (isinstance(groups, int) and isinstance(age, int)):
            return
        source = by_name[by_name[_put(node, nodes).inputs[0].edge].root]
        fresh = int(source.settings.get("count", 0))
        if count > groups:
            key, has, related = (
                "groups",
                f"`{decl.name}` can hold only {groups}",
                "the most that it holds",
            )
            help = (
                f"set `groups = {16 * count}` or more, so that a group is not drawn in every step"
            )
        elif count > fresh * age > 0 and _ages(node, nodes):
            key, has = (
                "max_age",
                (f"`{decl.name}` has at most {fresh * age} groups within `max_age`"),
            )
            related = "older groups are removed"
            help = (
                f"set `max_age = {8 * -(-count // fresh)}`, or draw fewer: {fresh} groups are "
                "put in per step"
            )
        else:
            return
        yield error(
            "F113", "bad-value", f"{count} groups are drawn per step, but {has}", node.span,
            related=(Label(text=related, span=decl.settings[key].origin.span or decl.name_span),),
            help=help,
        )  # fmt: skip

    def queue(self, node: Node, credits: int) -> int:
        return int(node.settings["count"])

    def check_age(
        self, program: Program, node: Node, age_bound: int, formula: str
    ) -> Iterator[Diagnostic]:
        """Report a `max_age` that no group meets: it can first be drawn one step after it was
        trained on."""
        decl, least = program.declared["buffer"][node.target], age_bound + 1
        most = decl.settings["max_age"]
        for value in self.age_settings(program, node, age_bound).values():
            yield error(
                "A302", "age-bound-exceeded",
                f"groups may already be {least} steps old when they can first be drawn from "
                f"`{decl.name}`, but it keeps none older than {most.value}",
                most.origin.span or decl.name_span,
                notes=(f"worst age of a step = {formula}",), help=f"`max_age = {value}`",
            )  # fmt: skip

    def age_settings(self, program: Program, node: Node, age_bound: int) -> Mapping[str, int]:
        decl, least = program.declared["buffer"][node.target], age_bound + 1
        young = decl.settings["max_age"].value < least
        return {f"{decl.name}.max_age": 8 * least} if young else {}

    def sequences(self, node: Node, sizes: Sizes) -> int:
        return sum(count for count, _ in self._drawn(node, sizes))

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        return sum(count * sizes.full_length(sample) for count, sample in self._drawn(node, sizes))

    def _drawn(self, node: Node, sizes: Sizes) -> Iterator[tuple[int, Node]]:
        """Yield the maximum number of completions drawn in a step, with their sampler."""
        for name in sorted(node.samplers):
            sample = sizes.node(name)
            yield int(node.settings["count"]) * int(sample.settings["n"]), sample

    def held_bytes(self, node: Node, sizes: Sizes) -> int:
        put = sizes.stored(node)
        kept = [sizes.node(i.edge).stream for i in put.inputs if i.attribute is None]
        settings = sizes.program.declared["buffer"][node.target].settings
        young = (int(settings["max_age"].value) + 1) * sizes.groups(sizes.node(put.inputs[0].edge))
        groups = min(int(settings["groups"].value), young)
        tokens = self.trained_tokens(node, sizes) // int(node.settings["count"])
        return groups * tokens * (TOKEN_BYTES + FIELD_BYTES * kept.count(Stream.LOGPROB))

    def edge_details(self, node: Node, program: Program) -> tuple[tuple[str, str], ...]:
        held = program.declared["buffer"][node.target].settings
        return (("holds", f"at most {held['groups'].value} groups"),)

    def plan_lines(self, node: Node, sizes: Sizes) -> Iterator[str]:
        settings = sizes.program.declared["buffer"][node.target].settings
        yield (
            f"{node.target}: {node.settings['count']} groups a step "
            f"({self.sequences(node, sizes):,} completions, {self.trained_tokens(node, sizes):,} "
            f"tokens at most), from at most {settings['groups'].value:,}"
        )
        yield (
            f"  1 to {settings['max_age'].value} steps old; "
            f"{sizes.held(node.target) / 2**20:,.1f} MiB at most in the controller's memory, and "
            "in every checkpoint"
        )

    def call_text(self, node: Node) -> str:
        return f"{node.target}.draw({node.settings['count']})"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        held = sizes.program.declared["buffer"][node.target].settings
        most = f"of {held['groups'].value}, age <= {held['max_age'].value}"
        return f"{counted(sizes.groups(node), 'group')} a step, {most}"

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return counted(node.settings["count"], "group")

    def age_text(self, node: Node, program: Program) -> str:
        held = program.declared["buffer"][node.target].settings
        return f"1 to {held['max_age'].value} steps"

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"count": node.settings["count"]}


def _statement_by_buffer(
    ctx: Any, steps: Sequence[FlowStep], op: str, does: str
) -> dict[str, FlowStep]:
    """Return the statement of an operation for each buffer; report a second one."""
    found: dict[str, FlowStep] = {}
    for step in (step for step in steps if step.op == op):
        first = found.setdefault(step.receiver, step)
        if first is not step:
            related = (Label(text="the first time", span=first.span),)
            help = (
                "a buffer can have only one `put` and one `draw`; declare one for each kind of "
                "sample"
            )
            message = f"`{step.receiver}` {does} twice"
            ctx.error("F102", message, step.span, related=related, help=help)
    return found


def _check_put(ctx: Any, steps: Sequence[FlowStep], put: FlowStep) -> None:
    for argument, value in put.settings.items():
        message = f"`{argument}` is a stream, not a constant"
        ctx.error("F109", message, value.origin.span or put.span, help="a stream of the flow")
    for read in put.inputs:
        if read.argument in TAKEN:
            message = f"`{read.argument}` is stored with every rollout"
            help = "remove it, or give the field another name"
            ctx.error("F114", message, read.span, help=help)
    for drawn in _behind(steps, put):
        if drawn.op == "recall":
            message = f"groups drawn from `{drawn.receiver}` cannot be put into a buffer again"
            related = (Label(text="drawn here", span=drawn.span),)
            help = "put only groups sampled in this step; a drawn group stays in its buffer"
            ctx.error("F105", message, put.span, related=related, help=help)


def _behind(steps: Iterable[FlowStep], put: FlowStep) -> list[FlowStep]:
    """Return the statements that a put depends on, directly or not."""
    by_name = {step.name: step for step in steps if step.name is not None}
    pending = [i.edge for i in put.inputs]
    found: dict[str, FlowStep] = {}
    while pending:
        step = by_name.get(name := pending.pop())
        if step is not None and name not in found:
            found[name] = step
            pending += [i.edge for i in step.inputs]
    return list(found.values())


def _put(recall: Node, nodes: Iterable[Node]) -> Node:
    """Return the node that fills the buffer of a draw."""
    return next(n for n in nodes if n.op == "put" and n.target == recall.target)


def _check_reader_of_draw(reader: Node, by_name: Mapping[str, Node]) -> Iterator[Diagnostic]:
    """Yield an error if a reader filters or scores rollouts that were drawn from a buffer."""
    name = by_name[reader.inputs[0].edge].name
    if Role.DROPS in reader.roles:
        message = f"`{name}` was drawn from a buffer, so it cannot be filtered"
        help = "filter it when it is stored: `put(rollout, keep = FILTER(score))`"
    elif Role.SCORES in reader.roles:
        message = f"`{name}` was drawn from a buffer, so it cannot be scored again"
        help = "store its score: `put(rollout, score = score)`, and read `old.score`"
    else:
        return
    yield error("F130", "flow-shape", message, reader.span, help=help)


def _no_new_rollouts(
    nodes: Sequence[Node], by_name: Mapping[str, Node], draws: set[str]
) -> Iterator[Diagnostic]:
    """Report a step whose first loss reads drawn groups only: the buffer is empty at first."""
    for step in (n for n in nodes if Role.UPDATES in n.roles):
        (_, batches), *_ = step.terms
        if all(by_name[read.edge].root in draws for read in batches):
            names = ", ".join(f"`{read.edge}`" for read in batches)
            yield error(
                "F130", "flow-shape",
                f"the first loss of a step needs samples of this step, but {names} was drawn from "
                "a buffer, which is empty at first",
                batches[0].span,
                help=f"`{step.target}.step(merge(fresh, old), loss = x)`, or "
                f"`{step.target}.step(fresh, loss = x, old, loss = y)`",
            )  # fmt: skip


def _ages(recall: Node, nodes: Sequence[Node]) -> bool:
    """True if drawn rollouts age with each step: their sampler is the target of a weight sync."""
    targets = {n.target for n in nodes if n.name in recall.samplers}
    return any(Role.TRANSFERS in n.roles and n.settings["target"] in targets for n in nodes)


OPERATIONS: Sequence[Operation] = (Put(), Recall())
