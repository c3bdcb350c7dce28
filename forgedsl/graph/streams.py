"""Checks the types of the streams that statements read. T703: a stream of the wrong kind. F101: a
part that the stream does not have. F110 and F114: a reward without its target.

    statement                 reads
    x.sample(p), x.logprobs(r), x.values(r)   prompts; rollouts or pairs
    rubric(r, target)            rollouts, and what belongs to their prompts (`prompt.target`)
    advantage(s), filter(s)      numbers: scores, results of functions, `rollout.num_tokens`
    x.keep(m)                    the decisions of a filter
    replay(r, field = ...)       rollouts or pairs; numbers, log-probs, decisions for bool
    trainer.step(b)              a batch

Each statement's output type depends only on its operation, so one mistake gives one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.hir.judges import judge_of, placeholders
from forgedsl.ir.graph import Input, Node, Stream, losses_of
from forgedsl.ir.program import Constructor, Program, PythonFunction, rewards_of
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.operations.base import Role, Wanted
from forgedsl.operations.registry import operation
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
TEXTS = ("text", "response")
"""parts of prompts and rollouts that are not numbers"""
COMPARING = ("math_equal", "exact", "contains")
"""library rewards that compare with a target"""


def check_streams(
    program: Program, nodes: tuple[Node, ...], by_name: Mapping[str, Node]
) -> list[Diagnostic]:
    """Return diagnostics about wrong arguments of all statements."""
    found: list[Diagnostic] = []
    for node in nodes:
        for read in node.inputs:
            source = by_name[read.edge]
            wanted = operation(node.op).wanted(program, node, read)
            of = operation(source.op).parts(source, nodes, by_name)
            if wanted is not None and not _fits(read, source, wanted, of):
                found.append(_wrong(node, read, source, wanted))
                if Role.SCORES in node.roles:
                    break  # for `grade(prompt, rollout)`, one message on the first argument
            elif read.attribute is not None:
                found += _part(program, read, source, by_name, of)
                found += _too_long(program, node, read)
        found += _without_target(program, node)
    return found


def _fits(
    read: Input, source: Node, wanted: Wanted, kept: Mapping[str, Stream | None] | None
) -> bool:
    if read.attribute is not None:
        stream = (kept or {}).get(read.attribute)
        if wanted.streams and read.attribute in TEXTS and kept is None:
            return False
        return wanted.attribute and (stream is None or stream in wanted.streams)
    return source.stream in wanted.streams


def _wrong(node: Node, read: Input, source: Node, wanted: Wanted) -> Diagnostic:
    given = WORDS[source.stream] if read.attribute is None else f"a part of {WORDS[source.stream]}"
    if read.attribute in TEXTS:
        given = "text"
    name = f"`{read.text}` carries" if "." not in source.name else "this is"
    reader = operation(node.op).reader(node, read)
    help = wanted.help if Role.PACKS not in node.roles or source.stream is Stream.MASK else ""
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


def _part(
    program: Program,
    read: Input,
    source: Node,
    by_name: Mapping[str, Node],
    kept: Mapping[str, Stream | None] | None,
) -> Iterator[Diagnostic]:
    """Report a part that items of the stream do not have, or that the dataset does not define."""
    parts = (*PARTS.get(source.stream, ()), *_of_turns(program, source, by_name))
    if kept is not None:
        parts = (*kept,)
    if read.attribute not in parts:
        close = did_you_mean(nearest(str(read.attribute), parts))
        known = f"they have {', '.join(f'`{p}`' for p in parts)}" if parts else ""
        if kept is not None:
            known += f"; to store more, write `{read.attribute} = ...` in its `put`"
        length = len(str(read.attribute))
        yield Diagnostic(
            code="F101",
            name="undefined",
            severity=Severity.ERROR,
            message=f"{WORDS[source.stream]} have no attribute `{read.attribute}`",
            span=Span(read.span.file, read.span.end - length, read.span.end),
            help=close or known,
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
                help="set `target = row.COLUMN`, which rewards compare with",
            )


def _of_turns(program: Program, source: Node, by_name: Mapping[str, Node]) -> Iterator[str]:
    """Yield the extra parts of an environment's rollouts: rewards of turns, `[B, T]`."""
    played = [by_name[name].settings.get("env") for name in sorted(source.samplers)]
    for name in [str(env) for env in played if env is not None and source.stream is Stream.ROLLOUT]:
        if name in program.environments:
            yield from (f"rewards.{part}" for part in program.environments[name].body.parts)


def _too_long(program: Program, node: Node, read: Input) -> Iterator[Diagnostic]:
    """Report per-token values (rewards of turns, the mask) declared as one number per sequence."""
    of_tokens = read.attribute == "mask" or str(read.attribute).startswith("rewards.")
    if not of_tokens or not (Role.COMPUTES in node.roles or Role.PACKS in node.roles):
        return
    readers = losses_of(program) if Role.PACKS in node.roles else [node.target]
    for field in (f for name in readers for f in program.functions[name].fields):
        if field.name != read.argument or not isinstance(field.type, ast.TensorType):
            continue
        axes = [axis.text for axis in field.type.axes if isinstance(axis, ast.Path)]
        if "T" not in axes:
            yield Diagnostic(
                code="T701",
                name="axis",
                severity=Severity.ERROR,
                message=(
                    f"`{field.name}` is declared [{', '.join(axes)}], but `{read.text}` is [B, T]"
                ),
                span=read.span,
                related=(Label(text="declared here", span=field.span),),
                help=(
                    "only an advantage over tokens can read it: `rl.turn_returns(..., "
                    "rollout.mask)`"
                )
                if read.attribute != "mask"
                else f"to read a number per rollout, write `{read.edge}.num_tokens`",
            )
            return


# ---- targets


def _without_target(program: Program, node: Node) -> Iterator[Diagnostic]:
    """Report a rubric or reward that is called without the target which one of its rewards
    needs."""
    if Role.SCORES not in node.roles or any(read.argument == "target" for read in node.inputs):
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
            message=(
                f"`{node.target}` needs a target, because `{reward}` compares the response with it"
            ),
            span=node.span,
            help=f"`{node.target}({node.inputs[0].text}, {draw}.target)`",
        )


def _compares(program: Program, name: str) -> bool:
    reward = program.rewards.get(name)
    body = reward.body if reward is not None else None
    judge = judge_of(reward)
    if judge is not None:
        return "target" in placeholders(judge.args["prompt"])
    if isinstance(body, PythonFunction):
        return _takes_target(body)
    return (
        isinstance(body, Constructor)
        and body.name in COMPARING
        and body.args.get("text") is None  # `contains` may search for a fixed text
    )


def _takes_target(function: PythonFunction) -> bool:
    """True if a Python reward has a parameter for the target without a default."""
    from forgedsl.hir.pycalls import inputs_of  # most files have no Python

    given = inputs_of(function)
    if isinstance(given, str):
        return False  # rule X802 says why it cannot be called
    required = [p.name for p in function.params if p.required and p.name not in function.args]
    return any(given.by_name.get(name) == "target" for name in required)
