"""D646 lost-rows: the weight of a draw is 0 for some levels, whose rows are then never drawn again.

    fn frontier(mean: float, count: float) -> float = 4 * mean * (1 - mean)              # fires
    fn frontier(mean: float, count: float) -> float = max(0.05, 4 * mean * (1 - mean))   # silent

Problems that the policy failed at first are not tried again once it has improved, and forgetting of
solved ones goes unnoticed. If new levels have weight 0, nothing is drawn at all. Add a positive
minimum. A level is the value of the dataset's `level` for a row (without it, each row is its own
level); scores are averaged by level. The rule evaluates the function for levels that are new, never
right, half right and always right. It also fires if levels that are always right are drawn more
often than those that are right half of the time: their groups have equal scores, and nothing is
learned from them (prime-rl #2192).

    fn solved(mean: float, count: float) -> float = max(0.05, mean)                      # fires
    fn edges(mean: float, count: float) -> float = 0.1 + abs(mean - 0.5)                 # fires
    fn hard(mean: float, count: float) -> float = max(0.05, 1 - mean)                    # silent
"""

from forgedsl.diagnostics import Reporter
from forgedsl.hir.context import ERROR, Context
from forgedsl.hir.evaluate import evaluate
from forgedsl.ir.program import Constant, Function
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax import ast

finding = rule(__doc__, "W")
LEVELS = {"is new": (0.0, 0.0), "was never right": (0.0, 16.0), "was right half of the time":
          (0.5, 16.0), "was always right": (1.0, 16.0)}  # fmt: skip

OFTEN = 1.5
"""how many times as often solved levels may be drawn as half solved ones"""


class Given:
    """Names of a weight function during its evaluation."""

    def __init__(self, function: Function, values: dict[str, object]) -> None:
        self.function = function
        self.values = values

    def value_of(self, path: ast.Path) -> object:
        found = self.function.scope.lookup(path.parts)
        known = found.value.value if isinstance(found, Constant) else ERROR
        return self.values.get(path.text, known)

    def knows(self, name: str) -> bool:
        return name in self.values

    def constants(self) -> tuple[str, ...]:
        return tuple(self.values)


def check(view: View) -> Findings:
    for step in view.program.flow:
        weight = step.settings.get("weight")
        if weight is None:
            continue
        function = view.program.functions[weight.value.name]
        weights = {what: _weight(function, *level) for what, level in LEVELS.items()}
        lost = [what for what, number in weights.items() if number is not None and number <= 0]
        half, solved = weights["was right half of the time"], weights["was always right"]
        if lost:
            yield finding(
                f"`{weight.value.name}` gives a level that {lost[0]} no chance to be drawn",
                weight.origin.span or step.span,
                help="keep a floor: `max(0.05, ...)`",
            )
        elif half is not None and solved is not None and solved > OFTEN * half:
            yield finding(
                f"`{weight.value.name}` draws a level that was always right {solved / half:.2g} "
                "times as often as one that was right half of the time",
                weight.origin.span or step.span,
                notes=("a group in which all are right has equal scores, and teaches nothing",),
                help="`max(0.05, 4 * mean * (1 - mean))` is largest in the middle",
            )


def _weight(function: Function, mean: float, count: float) -> float | None:
    """Return the weight of a level; None if it is unknown."""
    names = Given(function, {"mean": mean, "count": count})
    context = Context(Reporter())
    for field in function.fields:
        if field.default is not None:
            names.values[field.name] = evaluate(field.default, names, context)
    found: object = ERROR
    for statement in function.statements:
        found = evaluate(statement.value, names, context)
        if isinstance(statement, ast.Assign):
            names.values[statement.path.text] = found
    return float(found) if isinstance(found, int | float) else None
