"""R509 group-too-small: a baseline over siblings needs at least two of them.

With one sibling the group mean is the score itself, so every advantage is 0; a standard deviation
without an epsilon divides by 0 whenever all siblings score the same.

    rollout = generator.sample(prompt, n = 1)
    adv     = group_norm(score)                                # fires

    advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / std(r, G)     # fires: no epsilon

Sample at least two completions; add `1e-6` to the divisor.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Severity
from forgedsl.hir.ir import FlowStep, Function, Program
from forgedsl.lint import facts
from forgedsl.source import Span
from forgedsl.syntax import ast

CODE = "R509"
NAME = "group-too-small"
OVER_GROUP = ("mean", "std", "var", "sum")


def check(program: Program) -> Iterator[Diagnostic]:
    small = [s for s in program.flow if s.op == "sample" and s.settings["n"].value < 2]
    for step in program.flow:
        function = program.functions.get(step.receiver) if step.op == "call" else None
        if function is None or function.kind != "advantage":
            continue
        if small and _reduces_over_group(function):
            yield _too_small(step, small[0])
    for function in program.functions.values():
        if function.kind == "advantage" and function.module == "":
            yield from _no_epsilon(function)


def _reduces_over_group(function: Function) -> bool:
    return any(
        call.function.text in OVER_GROUP and _axis(call) == "G"
        for statement in function.statements
        for call in facts.calls(statement.value)
    )


def _axis(call: ast.Call) -> str:
    axes = [a.value.text for a in call.args[1:] if isinstance(a.value, ast.Path)]
    return axes[0] if axes else ""


def _too_small(step: FlowStep, sample: FlowStep) -> Diagnostic:
    return Diagnostic(
        code=CODE,
        name=NAME,
        severity=Severity.ERROR,
        message=f"`{step.receiver}` compares siblings, and a group has one",
        span=sample.settings["n"].origin.span or sample.span,
        related=(Label(text="compares siblings", span=step.span),),
        help="`n = 8`",
    )


def _no_epsilon(function: Function) -> Iterator[Diagnostic]:
    for statement in function.statements:
        for node in facts.walk(statement.value):
            divides = isinstance(node, ast.Binary) and node.operator == "/"
            if not divides or not isinstance(node.right, ast.Call):  # type: ignore[union-attr]
                continue
            divisor = node.right  # type: ignore[union-attr]
            if divisor.function.text == "std":
                end = Span(divisor.span.file, divisor.span.end, divisor.span.end)
                start = Span(divisor.span.file, divisor.span.start, divisor.span.start)
                edits = (Edit(text="(", span=start), Edit(text=" + 1e-6)", span=end))
                yield Diagnostic(
                    code=CODE,
                    name=NAME,
                    severity=Severity.ERROR,
                    message="this is 0 for a group whose siblings score the same",
                    span=divisor.span,
                    help="add an epsilon: `(std(r, G) + 1e-6)`",
                    fix=Fix(message="add 1e-6", edits=edits, safe=False),
                )
