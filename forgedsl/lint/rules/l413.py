"""L413 low-precision: loss math below f32.

A log-ratio is a small difference of large numbers. bf16 has 8 bits of precision, so ratios have
steps of 1 % and more, which the clip takes for a change of the policy. Weights and activations may
be bf16; log-probs, ratios and losses should be f32. In bf16, the mean ratio was not 1 on policy
(flow_grpo #204), and a KL was unstable (OpenRLHF #634).

    loss pg(logprob: diff [B, T] bf16, behavior: [B, T] f32, ...)       # fires
    loss pg(logprob: diff [B, T] f32, behavior: [B, T] f32, ...)        # silent

Declare it f32: the trainer computes log-probs in f32 anyway.
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax import ast

finding = rule(__doc__, "W")
LOW = ("bf16", "f16")


def check(view: View) -> Findings:
    seen: set[Span] = set()
    for loss in view.losses:
        for function in (loss.function, *loss.located.functions):
            for field in function.fields:
                type_ = field.type
                if not isinstance(type_, ast.TensorType) or type_.dtype not in LOW:
                    continue
                if type_.span in seen or type_.span.file.startswith(STANDARD):
                    continue
                seen.add(type_.span)
                end = type_.span.end
                span = Span(type_.span.file, end - len(type_.dtype), end)
                yield finding(
                    f"`{field.name}` is {type_.dtype}; loss math needs f32",
                    span,
                    help="declare it f32",
                    fix=Fix(message="f32", edits=(Edit(text="f32", span=span),), safe=False),
                )
