"""Replay of samples: what a buffer is filled with, and drawn from.

    good.put(rollout, adv = adv, keep = solved(score))      a FlowStep "put": rollout, keep, fields
    old = good.draw(8)                                      a FlowStep "recall"; `old.adv`

The two have no edge between them: a buffer closes a cycle, as `sync` does. So its draw can stand
above its put, and nothing that is drawn goes back into a buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from forgedsl.diagnostics import Label
from forgedsl.hir.context import Context
from forgedsl.hir.ir import FlowStep

OWN = ("num_tokens", "truncated", "mask")
"""parts of every rollout, drawn ones too"""
TAKEN = ("rollout", "keep", "behavior", "response", *OWN)
"""names that no field of a buffer can have"""


def check(ctx: Context, steps: Sequence[FlowStep], unsure: Set[str]) -> None:
    """Report a buffer that is filled or drawn from alone, or twice, and what cannot be put.

    `unsure` are the buffers of statements that have a mistake, which is reported.
    """
    found: dict[tuple[str, str], FlowStep] = {}
    for step in (step for step in steps if step.op in ("put", "recall")):
        first = found.setdefault((step.op, step.receiver), step)
        if first is not step:
            does = "is filled" if step.op == "put" else "is drawn from"
            related = (Label(text="the first time", span=first.span),)
            help_text = "one put and one draw; declare a buffer for each kind of sample"
            message = f"`{step.receiver}` {does} twice"
            ctx.error("F102", message, step.span, related=related, help=help_text)
        if step.op == "put":
            _check_put(ctx, steps, step)
    for (op, buffer), step in found.items():
        if buffer in unsure:
            continue
        if op == "put" and ("recall", buffer) not in found:
            message = f"`{buffer}` is filled, and nothing is drawn from it"
            ctx.error("F119", message, step.span, help=f"`old = {buffer}.draw(8)`")
        elif op == "recall" and ("put", buffer) not in found:
            message = f"`{step.name}` is drawn from `{buffer}`, and nothing is put there"
            ctx.error("F114", message, step.span, help=f"`{buffer}.put(rollout, adv = adv)`")


def _check_put(ctx: Context, steps: Sequence[FlowStep], put: FlowStep) -> None:
    for argument, value in put.settings.items():
        message = f"`{argument}` is a stream, not a constant"
        ctx.error("F109", message, value.origin.span or put.span, help="a stream of the flow")
    for read in put.inputs:
        if read.argument in TAKEN[2:]:
            message = f"`{read.argument}` is a part of every rollout"
            help_text = "leave it out, or give what is kept beside the rollout another name"
            ctx.error("F114", message, read.span, help=help_text)
    for drawn in _behind(steps, put):
        if drawn.op == "recall":
            message = f"what was drawn from `{drawn.receiver}` is not put into a buffer again"
            related = (Label(text="drawn here", span=drawn.span),)
            help_text = "put what was sampled in this step; a drawn group stays where it is"
            ctx.error("F105", message, put.span, related=related, help=help_text)


def _behind(steps: Iterable[FlowStep], put: FlowStep) -> list[FlowStep]:
    """The statements that a put depends on."""
    by_name = {step.name: step for step in steps if step.name is not None}
    pending, found = [i.edge for i in put.inputs], dict[str, FlowStep]()
    while pending:
        step = by_name.get(name := pending.pop())
        if step is not None and name not in found:
            found[name] = step
            pending += [i.edge for i in step.inputs]
    return list(found.values())


def put_into(flow: Iterable[FlowStep], recall: FlowStep) -> FlowStep | None:
    """The statement that fills what a recall draws from."""
    mine = (s for s in flow if s.op == "put" and s.receiver == recall.receiver)
    return next(mine, None)
