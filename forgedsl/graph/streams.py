"""What the statements of a flow may read: T703 where a stream is of another kind, F101 where it
has no such part, F110 and F114 where a reward has no target to compare with.

    statement                 reads
    x.sample(p), x.logprobs(r), x.values(r)   prompts; rollouts or pairs
    rubric(r, target)            rollouts, and what belongs to their prompts (`prompt.target`)
    advantage(s), filter(s)      numbers: scores, results of functions, `rollout.num_tokens`
    x.keep(m)                    the decisions of a filter
    replay(r, field = ...)       rollouts or pairs; numbers, log-probs, decisions for bool
    trainer.step(b)              a batch

The graph gives every statement a stream of its own, right or wrong, so one mistake gives one
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.graph.ir import Input, Node, Stream
from forgedsl.hir.buffers import OWN
from forgedsl.hir.ir import Constructor, Function, Program, rewards_of
from forgedsl.hir.judges import holes, judge_of
from forgedsl.hir.suggest import did_you_mean, nearest
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast

WORDS = {
    Stream.PROMPT: "prompts",
    Stream.PAIR: "preference pairs",
    Stream.ROLLOUT: "rollouts",
    Stream.LOGPROB: "log-probs of tokens",
    Stream.SCORE: "scores",
    Stream.VALUE: "numbers",
    Stream.MASK: "the decisions of a filter",
    Stream.BATCH: "a batch",
}
PARTS = {
    Stream.PROMPT: ("target", "text"),
    Stream.ROLLOUT: ("num_tokens", "truncated", "response", "mask"),
}
NUMBERS = (Stream.SCORE, Stream.VALUE)
KEPT = (*NUMBERS, Stream.LOGPROB, Stream.MASK)
"""what a buffer keeps beside rollouts"""
SEQUENCES = (Stream.ROLLOUT, Stream.PAIR)
TEXTS = ("text", "response")
"""parts that are no numbers"""
COMPARING = ("math_equal", "exact", "contains")
"""rewards of the standard library that need a target"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an argument reads; `attribute`: also a part of a prompt or rollout, or only that."""

    streams: tuple[Stream, ...]
    text: str
    attribute: bool = False
    help: str = ""


def check_streams(
    program: Program, nodes: tuple[Node, ...], by_name: Mapping[str, Node]
) -> list[Diagnostic]:
    """The wrong arguments of all statements."""
    found: list[Diagnostic] = []
    kept = {n.target: _kept(n, by_name) for n in nodes if n.op == "put"}
    for node in nodes:
        for read in node.inputs:
            source, wanted = by_name[read.edge], _wanted(program, node, read)
            of = kept.get(source.target, {}) if source.op == "recall" else {}
            if wanted is not None and not _fits(read, source, wanted, of):
                found.append(_wrong(node, read, source, wanted))
                if node.op == "score":
                    break  # `grade(prompt, rollout)`: the first argument says it
            elif read.attribute is not None:
                found += _part(program, read, source, by_name, of)
                found += _too_long(program, node, read)
        found += _without_target(program, node)
    return found


def _kept(put: Node, by_name: Mapping[str, Node]) -> dict[str, Stream | None]:
    """What is kept beside the rollouts of a buffer, and what it carries; None: a part of some, or
    something wrong, which is told where it is put."""
    reads = (i for i in put.inputs if i.argument not in ("rollout", "keep"))
    streams = {i.argument: None if i.attribute else by_name[i.edge].stream for i in reads}
    return {name: stream if stream in KEPT else None for name, stream in streams.items()}


def _wanted(program: Program, node: Node, read: Input) -> Wanted | None:
    if node.op == "sample":
        return Wanted(streams=(Stream.PROMPT,), text="prompts")
    if node.op == "logprobs":
        streams = (*SEQUENCES, Stream.BATCH)
        return Wanted(streams=streams, text="rollouts or preference pairs")
    if node.op == "score" and read.argument == "rollout":
        return Wanted(streams=(Stream.ROLLOUT,), text="rollouts")
    if node.op == "score":
        help = "`prompt.target`, for example"
        return Wanted(streams=(), text="what belongs to a prompt", attribute=True, help=help)
    if node.op in ("call", "mask"):
        return _argument(program.functions[node.target], read)
    if node.op == "keep":
        if read.argument == "edge":
            return None
        help = "declare it with `filter NAME(score: [G] f32) -> bool = ...`"
        return Wanted(streams=(Stream.MASK,), text="the decisions of a filter", help=help)
    if node.op == "put" and read.argument == "rollout":
        return Wanted(streams=(Stream.ROLLOUT,), text="rollouts", help="rollouts of a sampler")
    if node.op == "put" and read.argument == "keep":
        help = "declare it with `filter NAME(score: [G] f32) -> bool = ...`"
        return Wanted(streams=(Stream.MASK,), text="the decisions of a filter", help=help)
    if node.op == "put":
        help = "what a loss reads later: `adv = rl.group_norm(score)`"
        return Wanted(streams=KEPT, text="numbers", attribute=True, help=help)
    if node.op == "replay":
        return _field(program, node, read)
    if node.op == "step":
        help = f"`batch = replay({read.edge}, ...)`"
        return Wanted(streams=(Stream.BATCH,), text="a batch", help=help)
    return None


def _argument(function: Function, read: Input) -> Wanted | None:
    """By the declared type of a field of an advantage, a filter or another function."""
    field = next((f for f in function.fields if f.name == read.argument), None)
    if field is None or not isinstance(field.type, ast.TensorType):
        return None
    axes = ", ".join(axis.text for axis in field.type.axes if isinstance(axis, ast.Path))
    text = f"numbers, [{axes}] {field.type.dtype}"
    if field.type.dtype == "bool":
        return Wanted(streams=(Stream.MASK,), text=f"decisions, [{axes}] bool", attribute=True)
    streams = (Stream.LOGPROB,) if "T" in axes else NUMBERS
    return Wanted(streams=streams, text=text, attribute=True)


def _field(program: Program, node: Node, read: Input) -> Wanted | None:
    """The rollouts of a batch, and the fields that a loss reads beside them."""
    if read.argument == "rollout":
        help = f"`rollout.keep({read.edge})` gives the rollouts that it keeps"
        return Wanted(streams=SEQUENCES, text="rollouts or preference pairs", help=help)
    return Wanted(
        streams=(*NUMBERS, Stream.LOGPROB, *([Stream.MASK] if _is_bool(program, read) else [])),
        text="numbers",
        attribute=True,
    )


def _is_bool(program: Program, read: Input) -> bool:
    """Whether the loss of the flow declares this field as bool."""
    losses = [loss.value.name for s in program.flow if s.op == "step" for loss, _ in s.terms]
    fields = (f for name in losses for f in program.functions[name].fields)
    return any(
        f.name == read.argument and isinstance(f.type, ast.TensorType) and f.type.dtype == "bool"
        for f in fields
    )


def _fits(read: Input, source: Node, wanted: Wanted, kept: Mapping[str, Stream | None]) -> bool:
    if read.attribute is not None:
        stream = kept.get(read.attribute)
        if wanted.streams and read.attribute in TEXTS and source.op != "recall":
            return False
        return wanted.attribute and (stream is None or stream in wanted.streams)
    return source.stream in wanted.streams


def _wrong(node: Node, read: Input, source: Node, wanted: Wanted) -> Diagnostic:
    given = WORDS[source.stream] if read.attribute is None else f"a part of {WORDS[source.stream]}"
    if read.attribute in TEXTS:
        given = "text"
    name = f"`{read.text}` carries" if "." not in source.name else "this is"
    reader = READERS[node.op](node) if node.op in READERS else read.argument.replace(*REPLAYED)
    help = wanted.help if node.op != "replay" or source.stream is Stream.MASK else ""
    nested = read.span == source.span or read.attribute in TEXTS
    return Diagnostic(
        code="T703",
        name="stream",
        severity=Severity.ERROR,
        message=f"`{reader}` reads {wanted.text}; {name} {given}",
        span=read.span,
        related=() if nested else (Label(text=f"{given} are made here", span=source.span),),
        help=help,
    )


REPLAYED = ("rollout", "replay")
READERS: dict[str, Callable[[Node], str]] = {
    "sample": lambda node: f"{node.target}.sample",
    "logprobs": lambda node: f"{node.target}.{'values' if node.values else 'logprobs'}",
    "step": lambda node: f"{node.target}.step",
    "keep": lambda node: "keep",
    "put": lambda node: f"{node.target}.put",
    **dict.fromkeys(("score", "call", "mask"), lambda node: node.target),
}


def _part(
    program: Program,
    read: Input,
    source: Node,
    by_name: Mapping[str, Node],
    kept: Mapping[str, Stream | None],
) -> Iterator[Diagnostic]:
    """A part that items of the stream do not have, or that the dataset does not give them."""
    parts = (*PARTS.get(source.stream, ()), *_of_turns(program, source, by_name))
    if source.op == "recall":
        parts = (*kept, *OWN)
    if read.attribute not in parts:
        close = did_you_mean(nearest(str(read.attribute), parts))
        has = f"they have {', '.join(f'`{p}`' for p in parts)}" if parts else ""
        if source.op == "recall":
            has += f"; `{read.attribute} = ...` in its `put` keeps more"
        length = len(str(read.attribute))
        yield Diagnostic(
            code="F101",
            name="undefined",
            severity=Severity.ERROR,
            message=f"{WORDS[source.stream]} have no part `{read.attribute}`",
            span=Span(read.span.file, read.span.end - length, read.span.end),
            help=close or has,
        )
    elif read.attribute == "target":
        dataset = program.datasets[by_name[source.root].target]
        if dataset.settings["target"].value is None:
            yield Diagnostic(
                code="F110",
                name="missing-setting",
                severity=Severity.ERROR,
                message=f"`{dataset.name}` has no `target`, but `{read.text}` reads it",
                span=dataset.name_span,
                related=(Label(text="read here", span=read.span),),
                help="`target = row.COLUMN`: what rewards compare with",
            )


def _of_turns(program: Program, source: Node, by_name: Mapping[str, Node]) -> Iterator[str]:
    """What rollouts that were played have besides: rewards of their turns, `[B, T]`."""
    played = [by_name[name].settings.get("env") for name in sorted(source.samplers)]
    for name in [str(env) for env in played if env is not None and source.stream is Stream.ROLLOUT]:
        if name in program.environments:
            yield from (f"rewards.{part}" for part in program.environments[name].body.parts)


def _too_long(program: Program, node: Node, read: Input) -> Iterator[Diagnostic]:
    """What there is of each token (a reward of turns, the mask), where a number for the sequence is
    declared."""
    of_tokens = read.attribute == "mask" or str(read.attribute).startswith("rewards.")
    if not of_tokens or node.op not in ("call", "mask", "replay"):
        return
    losses = [loss.value.name for s in program.flow if s.op == "step" for loss, _ in s.terms]
    readers = losses if node.op == "replay" else [node.target]
    for field in (f for name in readers for f in program.functions[name].fields):
        if field.name != read.argument or not isinstance(field.type, ast.TensorType):
            continue
        axes = [axis.text for axis in field.type.axes if isinstance(axis, ast.Path)]
        if "T" not in axes:
            yield Diagnostic(
                code="T701",
                name="axis",
                severity=Severity.ERROR,
                message=f"`{field.name}` is declared [{', '.join(axes)}], `{read.text}` is [B, T]",
                span=read.span,
                related=(Label(text="declared here", span=field.span),),
                help="an advantage over tokens takes it: `rl.turn_returns(..., rollout.mask)`"
                if read.attribute != "mask"
                else f"`{read.edge}.num_tokens` is a number of each rollout",
            )
            return


# ---- targets


def _without_target(program: Program, node: Node) -> Iterator[Diagnostic]:
    """A rubric or reward called without the target that one of its rewards compares with."""
    if node.op != "score" or any(read.argument == "target" for read in node.inputs):
        return
    reward = next(
        (name for name in rewards_of(program, node.target) if _compares(program, name)), ""
    )
    if reward:
        draw = node.root
        yield Diagnostic(
            code="F114",
            name="arity",
            severity=Severity.ERROR,
            message=f"`{node.target}` needs a target: `{reward}` compares the response with it",
            span=node.span,
            help=f"`{node.target}({node.inputs[0].text}, {draw}.target)`",
        )


def _compares(program: Program, name: str) -> bool:
    reward = program.rewards.get(name)
    body = reward.body if reward is not None else None
    judge = judge_of(reward)
    if judge is not None:
        return "target" in holes(judge.args["prompt"])
    return (
        isinstance(body, Constructor)
        and body.name in COMPARING
        and body.args.get("text") is None  # `contains` may look for a text of its own
    )
