"""`DATASET.draw(n)`: draws the prompts of a step's groups, optionally weighted by earlier scores.

    prompt = sums.draw(32, weight = rl.frontier)     settings["weight"] of the draw
    sums.observe(prompt, score)                      settings["observe"] of the draw, no step

`observe` names the score whose results are passed to the weight function. It closes a cycle, as
`sync` does: the next draws depend on earlier scores. It is not a node of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import counted, error
from forgedsl.ir.program import Function, Ref, Value
from forgedsl.operations.base import Level, Lowering, Operation, Role, Sizes, Stream
from forgedsl.operations.statements import Form, Statement, Statements, in_file
from forgedsl.records import replace
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forgedsl.diagnostics import Diagnostic
    from forgedsl.ir.graph import Node
    from forgedsl.ir.program import FlowStep

GIVEN = ("mean", "count")
"""parameters of a weight function: mean score of a level's last groups, and number of its groups"""
EXAMPLE = "`fn frontier(mean: float, count: float) -> float = max(0.05, 4 * mean * (1 - mean))`"

DRAW = Form(
    owner="dataset",
    method="draw",
    params=("count", "weight"),
    counts=("count",),
    columns=("prompt",),
    doc="draws `count` prompts for each step. `weight` names a `fn` that returns the probability "
    "of taking a row. Its parameters are the `mean` of recent scores and the `count` of earlier "
    "groups, both over the rows with the same `level` (a setting of the dataset)",
)
OBSERVE = Form(
    owner="dataset",
    method="observe",
    params=("prompt", "score"),
    result=False,
    doc="passes this score to the `weight` of the draw",
)


class Draw(Operation):
    name = "draw"
    roles = frozenset({Role.SOURCE, Role.PROMPTS})
    stream = Stream.PROMPT
    level = Level.GROUP
    owner = "dataset"
    forms = (DRAW, OBSERVE)

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        if statement.form is OBSERVE:
            return _observe(flow, statement)
        by = next((arg for arg in statement.call.args if arg.name == "weight"), None)
        rest = replace(
            statement.call, args=tuple(arg for arg in statement.call.args if arg is not by)
        )
        weight = None if by is None else _weight(flow, by.value)
        plain = replace(DRAW, params=("count",))
        if not flow.resolve_call(self.name, replace(statement, call=rest, form=plain)):
            return False
        if weight is not None:
            settings = {**flow.steps[-1].settings, "weight": weight}
            flow.steps[-1] = replace(flow.steps[-1], settings=settings)
        return by is None or weight is not None

    def finish(self, flow: Statements, steps: Sequence[FlowStep]) -> Sequence[FlowStep]:
        """Attach the observed score to each weighted draw; report a weight or an `observe`
        alone."""
        return [self._observed(flow, step) for step in steps]

    def _observed(self, flow: Statements, step: FlowStep) -> FlowStep:
        weighs, score = step.settings.get("weight"), flow.observed.get(str(step.name))
        if weighs is not None and score is None:
            message = f"`{step.name}` is weighted, but the flow passes it no scores"
            help = f"`{step.receiver}.observe({step.name}, score)`"
            flow.ctx.error("F114", message, weighs.origin.span or step.span, help=help)
        elif weighs is None and score is not None and step.op == self.name:
            message = f"`{step.name}` is drawn without a weight, so this has no effect"
            help = f"`{step.receiver}.draw(..., weight = FUNCTION)`"
            flow.ctx.error("F119", message, score.origin.span or step.span, help=help)
        elif score is not None:
            return replace(step, settings={**step.settings, "observe": score})
        return step

    def check_joins(self, node: Node, by_name: Mapping[str, Node]) -> Iterator[Diagnostic]:
        """Check that the weight of a draw uses scores of that draw's own prompts."""
        score = by_name.get(str(node.settings.get("observe")))
        if score is not None and score.root != node.name:
            message = (
                f"the weight of `{node.name}` observes `{score.name}`, which is a score for "
                f"`{score.root}`"
            )
            help = f"observe a score of completions for `{node.name}`"
            yield error("F112", "unrelated-join", message, score.span, help=help)

    def call_text(self, node: Node) -> str:
        weight = f", weight = {node.settings['weight']}" if "weight" in node.settings else ""
        return f"{node.target}.draw({node.settings['count']}{weight})"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return f"{counted(sizes.groups(node), 'prompt')} a step"

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return counted(node.settings["count"], "prompt")

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        found: dict[str, Any] = {"count": node.settings["count"]}
        if "weight" in node.settings:
            found["weight"] = to.scalar(node.settings["weight"])
            found["observe"] = node.settings["observe"]
        return found


def _weight(flow: Statements, value: ast.Expr) -> Value | None:
    """Resolve the weight function; None after reporting a mistake."""
    ctx, scope = flow.ctx, flow.scope
    found = scope.lookup(value.parts) if isinstance(value, ast.Path) else None
    if isinstance(value, ast.Path) and len(value.parts) == 1 and found is None:
        known = [n for n, f in scope.names.items() if isinstance(f, Function) and f.kind == "fn"]
        ctx.unknown("F101", "undefined function", value.text, value.span, known)
        return None
    if not isinstance(value, ast.Path) or not isinstance(found, Function) or found.kind != "fn":
        message = "a weight must be a function of earlier scores"
        ctx.error("F109", message, value.span, help=f"name one, such as {EXAMPLE}")
        return None
    flow.use(value.parts[0])
    flow.functions[value.text] = found
    asked = [field for field in found.fields if field.default is None]
    wrong = next((f for f in asked if f.name not in GIVEN or not _is_number(f.type)), None)
    if wrong is not None or not asked:
        what = f"`{wrong.name}`" if wrong is not None else "nothing"
        message = (
            f"`{value.text}` takes {what}, but a weight must take `mean`, `count` or both, "
            "each a float"
        )
        ctx.error("F114", message, value.span, help=EXAMPLE)
        return None
    return in_file(Ref(name=value.text), value.span)


def _observe(flow: Statements, statement: Statement) -> bool:
    """Resolve `observe`: record the score for a weighted draw; False after reporting a mistake."""
    call, ctx = statement.call, flow.ctx
    callee = call.function.text
    shown = f"`{callee}(prompt, score)`"
    paths = [arg.value for arg in call.args if isinstance(arg.value, ast.Path)]
    if statement.name is not None:
        ctx.error("F119", "`observe` has no result", call.span, help=f"write only {shown}")
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
    if Role.PROMPTS not in drawn.roles or drawn.receiver != statement.receiver:
        message = f"`{paths[0].text}` was not drawn from `{statement.receiver}`"
        ctx.error("F109", message, paths[0].span, help=shown)
        return False
    if Role.SCORES not in score.roles:
        message = f"`{paths[1].text}` is not a score"
        ctx.error("F109", message, paths[1].span, help="`score = grade(rollout, prompt.target)`")
        return False
    if paths[0].text in flow.observed:
        ctx.error("F102", f"`{paths[0].text}` is observed twice", call.span)
        return False
    flow.observed[paths[0].text] = in_file(Ref(name=paths[1].text), call.span)
    return True


def _is_number(type_: ast.Type) -> bool:
    return isinstance(type_, ast.NamedType) and type_.name in ("float", "int", "f32")


OPERATIONS: Sequence[Operation] = (Draw(),)
