"""Draws whose rows are weighed by results: `draw(32, weight = frontier)` and `observe`.

    prompt = sums.draw(32, weight = rl.frontier)     settings["weight"] of the draw
    sums.observe(prompt, score)                      settings["observe"] of the draw, no step

`observe` closes a cycle, as `sync` does: what is drawn next depends on what was scored. So it is no
node that data flow through, and says only which score the weight is given the results of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from forgedsl.hir.context import Context
from forgedsl.hir.file import File
from forgedsl.hir.table import Declared
from forgedsl.ir.program import FlowStep, Function, Origin, Ref, Value
from forgedsl.records import replace
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role

GIVEN = ("mean", "count")
"""what a weight may ask for: the mean score of a level's last groups, and how many there were"""
EXAMPLE = "`fn frontier(mean: float, count: float) -> float = max(0.05, 4 * mean * (1 - mean))`"


class Statements(Protocol):
    """What is known of a flow while its statements are read (flow.FlowResolver)."""

    resolver: File
    ctx: Context
    functions: dict[str, Function]
    edges: dict[str, Span]
    failed: set[str]
    steps: list[FlowStep]
    observed: dict[str, Value]


def weight(flow: Statements, value: ast.Expr) -> Value | None:
    """The function that weighs rows; None if it is none, which is reported."""
    ctx, scope = flow.ctx, flow.resolver.scope
    found = scope.lookup(value.parts) if isinstance(value, ast.Path) else None
    if isinstance(value, ast.Path) and len(value.parts) == 1 and found is None:
        known = [n for n, f in scope.names.items() if isinstance(f, Function) and f.kind == "fn"]
        ctx.unknown("F101", "undefined function", value.text, value.span, known)
        return None
    if not isinstance(value, ast.Path) or not isinstance(found, Function) or found.kind != "fn":
        message = "a weight is a function of what was scored before"
        ctx.error("F109", message, value.span, help=f"name one: {EXAMPLE}")
        return None
    flow.resolver.used.add(value.parts[0])
    flow.functions[value.text] = found
    asked = [field for field in found.fields if field.default is None]
    wrong = next((f for f in asked if f.name not in GIVEN or not _is_number(f.type)), None)
    if wrong is not None or not asked:
        what = f"`{wrong.name}`" if wrong is not None else "nothing"
        message = f"`{value.text}` takes {what}; a weight takes `mean` and `count`, each a float"
        ctx.error("F114", message, value.span, help=EXAMPLE)
        return None
    return _written(value.text, value.span)


def observe(flow: Statements, name: str | None, call: ast.Call, dataset: Declared) -> bool:
    """Note the score whose results a draw is weighed by; whether that can be."""
    callee, ctx = call.function.text, flow.ctx
    shown = f"`{callee}(prompt, score)`"
    paths = [arg.value for arg in call.args if isinstance(arg.value, ast.Path)]
    if name is not None:
        ctx.error("F119", "an observation has no result", call.span, help=f"write {shown} alone")
        return False
    if len(call.args) != 2 or len(paths) != 2 or any(arg.name for arg in call.args):
        ctx.error("F114", f"`{callee}` takes a draw and its score", call.span, help=shown)
        return False
    by_name = {step.name: step for step in flow.steps}
    for path in paths:
        if path.text not in flow.edges:
            if path.text not in flow.failed:
                ctx.unknown("F101", "undefined stream", path.text, path.span, flow.edges)
            return False
    drawn, score = (by_name[path.text] for path in paths)
    if Role.PROMPTS not in drawn.roles or drawn.receiver != dataset.name:
        message = f"`{paths[0].text}` is not drawn from `{dataset.name}`"
        ctx.error("F109", message, paths[0].span, help=shown)
        return False
    if Role.SCORES not in score.roles:
        message = f"`{paths[1].text}` is no score"
        ctx.error("F109", message, paths[1].span, help="`score = grade(rollout, prompt.target)`")
        return False
    if paths[0].text in flow.observed:
        ctx.error("F102", f"`{paths[0].text}` is observed twice", call.span)
        return False
    flow.observed[paths[0].text] = _written(paths[1].text, call.span)
    return True


def joined(flow: Statements, observed: Mapping[str, Value]) -> list[FlowStep]:
    """The steps, each weighted draw with its score; one without the other is reported."""
    found = []
    for step in flow.steps:
        weighs, score = step.settings.get("weight"), observed.get(str(step.name))
        if weighs is not None and score is None:
            message = f"`{step.name}` is weighted, and nothing says by which results"
            said = f"`{step.receiver}.observe({step.name}, score)`"
            flow.ctx.error("F114", message, weighs.origin.span or step.span, help=said)
        elif weighs is None and score is not None and Role.PROMPTS in step.roles:
            message = f"`{step.name}` is drawn without a weight, so nobody asks for its results"
            said = f"`{step.receiver}.draw(..., weight = FUNCTION)`"
            flow.ctx.error("F119", message, score.origin.span or step.span, help=said)
        elif score is not None:
            step = replace(step, settings={**step.settings, "observe": score})
        found.append(step)
    return found


def _is_number(type_: ast.Type) -> bool:
    return isinstance(type_, ast.NamedType) and type_.name in ("float", "int", "f32")


def _written(name: str, span: Span) -> Value:
    return Value(value=Ref(name=name), origin=Origin(layer="file", detail="", span=span))
