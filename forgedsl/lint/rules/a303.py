"""A303 off-policy-without-ratio: rollouts may be stale, and the loss does not know it.

Under `schedule async` a batch can come from weights one or more steps old. A loss that never reads
`behavior` treats those tokens as if the current policy had sampled them: torchforge's first GRPO
did (`exp(lp - lp.detach())` is always 1).

    loss pg(logprob: diff [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
      minimize token_mean(-logprob * adv, mask)            # fires under schedule async
    }

Multiply by `exp(clamp(logprob - behavior, -10.0, 10.0))`, or use `schedule sync`. Where the bias is
wanted: `# forge: allow[A303] reason`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.hir.ir import Program
from forgedsl.lint import facts

CODE = "A303"
NAME = "off-policy-without-ratio"


def check(program: Program) -> Iterator[Diagnostic]:
    schedule = program.schedule
    if schedule is None or schedule.label != "async" or not any(facts.samplers(program)):
        return
    if schedule.settings["max_policy_age"].value == 0:
        return
    for loss in facts.losses(program):
        if "behavior" in facts.read_by_objective(loss):
            continue
        step = next(s for s in program.flow if s.op == "step")
        yield Diagnostic(
            code=CODE,
            name=NAME,
            severity=Severity.ERROR,
            message=f"loss `{loss.name}` ignores that rollouts may be older than the weights",
            span=step.settings["loss"].origin.span or step.span,
            related=(Label(text="rollouts may be stale", span=schedule.name_span),),
            help="weight by exp(clamp(logprob - behavior, -10.0, 10.0)), or write `schedule sync`",
        )
