"""T701 axis: a field of the loss has other axes than the flow's value.

    ref_lp = reference.logprobs(rollout)                       # [B, T], a number per token
    batch  = replay(rollout, ref = ref_lp, adv = adv)
    loss pg(..., ref: [B] f32, ...)                            # fires: one number per sequence
    loss pg(..., ref: [B, T] f32, ...)                         # silent

Broadcasting would silently compute the wrong thing: torchforge's `ref_logprobs.squeeze()` did so
whenever a batch had one row. Declare the axes of the value: log-probs are [B, T], advantages and
scores [B]. Mismatched axes inside an expression have the same code.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.view import View
from forgedsl.losses.reductions import over_tokens
from forgedsl.syntax import ast
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")
PER_TOKEN = ((Role.MEASURES, True), (Role.SCORES, False))


def check(view: View) -> Findings:
    for loss in view.losses:
        declared = {field.name: field for field in loss.function.fields}
        for name, step in loss.sources:
            field = declared.get(name)
            if field is None or not isinstance(field.type, ast.TensorType):
                continue
            per_token = next((given for role, given in PER_TOKEN if role in step.roles), None)
            if Role.COMPUTES in step.roles:
                per_token = over_tokens(view.program.functions[step.receiver])
            axes = [axis.text for axis in field.type.axes if isinstance(axis, ast.Path)]
            if per_token is None or ("T" in axes) == per_token or "P" in axes:
                continue
            del declared[name]  # reported once, even if several batches have it
            given = "[B, T]" if per_token else "[B]"
            own = not field.type.span.file.startswith(STANDARD)
            yield finding(
                f"`{name}` is declared [{', '.join(axes)}], the flow gives it {given}",
                field.type.span if own else step.span,
                related=(Label(text=f"{given} f32", span=step.span),) if own else (),
                help=f"declare it {given} {field.type.dtype}",
            )
