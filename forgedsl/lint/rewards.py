"""Rewards for rules: the interval of their values, and the Python they run.

RewardDecl -> Interval            a body in the language, a standard reward; None for Python
rubric     -> {reward: weight}    its score as a sum of weighted rewards; None if it is not one
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from forgedsl.hir.judges import NAME as JUDGE
from forgedsl.hir.judges import SCORER
from forgedsl.ir.program import (
    Constant,
    Constructor,
    Decl,
    Function,
    PythonFunction,
    RewardDecl,
    Scope,
)
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names, walk
from forgedsl.types.intervals import ANY, BOOL, COUNT, INF, Interval, interval, point
from forgedsl.types.ops import TRANSFER

if TYPE_CHECKING:
    import ast as python

    from forgedsl.hir.pyimport import PythonCallable
    from forgedsl.types.effects import Use

T = TypeVar("T")
STANDARD = {
    "math_equal": BOOL, "think_tags": BOOL, "exact": BOOL, "contains": BOOL, "format_regex": BOOL,
}  # fmt: skip
OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "**": "pow", "and": "and",
    "or": "or", "==": "eq", "!=": "ne", "<=": "le", ">=": "ge", "<": "lt", ">": "gt",
}  # fmt: skip
TEXT_RESULTS = {"len": COUNT, "matches": BOOL}
DEPTH = 32
ENDS = ("done", "turns", "tokens", "time", "error")
"""how a trajectory ends: the values of `r.ended`, which are evaluated as their place here"""
MOST = 6
"""maximum number of rewards of a rubric whose bounds are tried in all combinations"""


def reward_interval(reward: RewardDecl, view: View) -> Interval | None:
    """Return the interval of a reward's values, computed once; None if unknown."""
    key = ("interval", reward.name)
    if key not in view.answers:
        view.answers[key] = _reward_interval(reward, view)
    found: Interval | None = view.answers[key]
    return found


def _reward_interval(reward: RewardDecl, view: View) -> Interval | None:
    longest = float(view.max_tokens) * view.turns.hi if view.max_tokens is not None else INF
    body = reward.body
    if isinstance(body, Constructor):
        if body.name == "overlong":
            never = longest <= body.args["soft"]
            return point(0.0) if never else interval(-1.0, 0.0)
        if body.name == JUDGE:
            return interval(*map(float, body.args["range"]))
        if body.name == SCORER:
            return None
        return STANDARD.get(body.name, interval(0.0, 1.0))
    if isinstance(body, PythonFunction):
        return None
    key = (reward_interval, view.identity(body), longest, view.turns)
    known = view.shared.answers
    if key not in known:
        known[key] = _value(body, interval(1.0, longest), view.turns)
    found: Interval = known[key]
    return found


def _value(body: Function, num_tokens: Interval, turns: Interval, end: str = "") -> Interval:
    rollout = {"num_tokens": num_tokens, "truncated": BOOL, "turns": turns}
    if end:
        rollout["ended"] = point(float(ENDS.index(end)))
    return _Body(rollout, 0).function(body, {})


LENGTHS = 8
EMPTY = 0.1
"""up to this penalty of an empty answer, it may be a constant that all answers get"""
MOST_TURNS = 64
"""maximum number of turns for which a reward is evaluated"""


def _by_length(body: Function, longest: int, view: View) -> list[Interval]:
    """Return the intervals of a reward for answers of LENGTHS lengths, computed once for all
    views."""
    key = (_by_length, view.identity(body), longest, view.turns)
    known = view.shared.answers
    if key not in known:
        lengths = (point(float(longest * i // LENGTHS)) for i in range(1, LENGTHS + 1))
        known[key] = [_value(body, length, view.turns) for length in lengths]
    found: list[Interval] = known[key]
    return found


def at_no_tokens(reward: RewardDecl, view: View) -> float | None:
    """Return the value of a reward in the language for an answer without tokens; None if it is not
    known."""
    body = reward.body
    if not isinstance(body, Function):
        return None
    key = (at_no_tokens, view.identity(body), view.turns)
    known = view.shared.answers
    if key not in known:
        known[key] = _value(body, point(0.0), view.turns)
    found: Interval = known[key]
    return found.lo if found.is_point else None


def penalizes_all(reward: RewardDecl, view: View) -> bool:
    """True if a reward in the language is a length penalty that an empty answer pays already, and
    that the score adds: R522 reports it."""
    counts = reward.name in positive_rewards(view) and is_of_length(reward, view)
    least = at_no_tokens(reward, view) if counts else None
    return least is not None and least < -EMPTY


def varies_with_length(reward: RewardDecl, view: View) -> bool:
    """True if answers of different length nearly always score differently."""
    body, longest = reward.body, view.max_tokens
    if not isinstance(body, Function) or longest is None or longest < LENGTHS:
        return False
    values = _by_length(body, longest, view)
    exact = {value.lo for value in values if value.is_point}
    return len(exact) >= LENGTHS - 2


def flat_in_length(reward: RewardDecl, view: View) -> float | None:
    """Return the value of a reward if it is the same for answers of all lengths; None if not."""
    body, longest = reward.body, view.max_tokens
    if not isinstance(body, Function) or longest is None or longest < LENGTHS:
        return None
    values = _by_length(body, longest, view)
    exact = {value.lo for value in values if value.is_point}
    return exact.pop() if len(exact) == 1 and all(value.is_point for value in values) else None


def slope_in_turns(reward: RewardDecl, view: View) -> bool:
    """True if a reward rises with the number of turns, and never falls."""
    body, most = reward.body, view.turns.hi
    if not isinstance(body, Function) or not 1 < most <= MOST_TURNS:
        return False
    key = (slope_in_turns, view.identity(body), view.max_tokens, view.turns)
    known = view.shared.answers
    if key not in known:
        tokens = interval(1.0, INF)
        values = [_value(body, tokens, point(float(n))) for n in range(1, int(most) + 1)]
        steps = [b.lo - a.lo for a, b in itertools.pairwise(values)]
        exact = all(value.is_point for value in values)
        known[key] = exact and min(steps) >= 0 and max(steps) > 0
    found: bool = known[key]
    return found


def length_slope(reward: RewardDecl, view: View) -> int:
    """Return 1 if the value never falls with the length of an answer and still rises in the upper
    half of the lengths, -1 for the opposite, else 0."""
    body, longest = reward.body, view.max_tokens
    if not isinstance(body, Function) or longest is None or longest < LENGTHS:
        return 0
    values = _by_length(body, longest, view)
    steps = [b.lo - a.lo for a, b in itertools.pairwise(values)]
    if not all(value.is_point for value in values) or sum(map(bool, steps[LENGTHS // 2 :])) < 2:
        return 0
    return 1 if min(steps) >= 0 else -1 if max(steps) <= 0 else 0


def is_of_length(reward: RewardDecl, view: View) -> bool:
    """True if a reward depends on the length of an answer."""
    body = reward.body
    over = isinstance(body, Constructor) and body.name == "overlong"
    return over or varies_with_length(reward, view)


def score_interval(name: str, view: View) -> Interval | None:
    """Return the interval of a rubric's or reward's values; None if unknown."""
    if name in view.program.rewards:
        return reward_interval(view.program.rewards[name], view)
    score = score_of(view, view.program.rubrics[name])
    return score.interval if score.is_known else None


UNFINISHED = 0.05
"""least difference of a score that is more than a tie-break"""


def ending_scores(name: str, view: View) -> dict[str, tuple[float, float, str]]:
    """Return the ends of a trajectory that score more than a finished wrong answer, each with its
    score, that of the finished one, and the reward that makes the difference."""
    rubric = view.program.rubrics.get(name)
    rewards = score_of(view, rubric).rewards if rubric else {name: view.program.rewards[name]}
    bodies = {n: r.body for n, r in rewards.items() if _reads_end(r)}
    ended = {n: body for n, body in bodies.items() if isinstance(body, Function)}
    found: dict[str, tuple[float, float, str]] = {}
    if len(ended) == len(rewards):
        return found  # to last until the end may be the task itself
    for end in ENDS[1:4] if ended else ():
        at = [
            {n: _value(body, COUNT, view.turns, each).lo for n, body in ended.items()}
            for each in (end, ENDS[0])
        ]
        if rubric is not None:
            score = score_of(view, rubric)
            others = {n: 0.0 if r is None or r.lo <= 0 <= r.hi else r.lo
                      for n, r in score.ranges.items()}  # fmt: skip
            scores = [score.at({**others, **each}) for each in at]
        else:
            scores = [each[name] for each in at]
        if all(map(math.isfinite, scores)) and scores[0] > scores[1] + UNFINISHED:
            moved = next(n for n in ended if at[0][n] != at[1][n])
            found[end] = (*scores, moved)  # type: ignore[assignment]
    return found


def _reads_end(reward: RewardDecl) -> bool:
    body = reward.body
    if not isinstance(body, Function) or reward.settings["monitor"].value:
        return False
    return any(parts[1:] == ("ended",) for parts in names(body.statements))


def score_of(view: View, rubric: Decl) -> Score:
    """Return the score of a rubric, made once."""
    key = ("score", rubric.name)
    if key not in view.answers:
        view.answers[key] = Score(view, rubric)
    found: Score = view.answers[key]
    return found


class Score:
    """The score of a rubric as a function of its rewards. `ranges` are their intervals, None if
    unknown. Views with equal intervals and parameters share what was computed."""

    def __init__(self, view: View, rubric: Decl) -> None:
        self.score = rubric.settings["score"].value
        named = dict.fromkeys(names(self.score.expr))
        rewards, scope = view.program.rewards, self.score.scope
        self.rewards = {n: rewards[n] for n in map(".".join, named) if n in rewards}
        self.ranges = {name: reward_interval(r, view) for name, r in self.rewards.items()}
        values = [repr(getattr(scope.lookup(parts), "value", None)) for parts in named]
        key = (Score, rubric.name, self.score.expr.span, *self.ranges.items(), *values)
        self._known: dict[object, Any] = view.shared.answers.setdefault(key, {})

    @property
    def is_known(self) -> bool:
        return all(found is not None and found.is_bounded for found in self.ranges.values())

    def at(self, values: Mapping[str, float]) -> float:
        """Evaluate the score for given rewards."""
        found = self._at(values)
        return found.lo if found.is_point else math.nan

    def _at(self, values: Mapping[str, float]) -> Interval:
        key = tuple(values[name] for name in self.ranges)
        if key not in self._known:
            body = _Body({}, 0)
            body.scope, body.locals = self.score.scope, {n: point(v) for n, v in values.items()}
            self._known[key] = body.expr(self.score.expr)
        found: Interval = self._known[key]
        return found

    @property
    def interval(self) -> Interval | None:
        """Interval of the score over all combinations of bounds of its rewards (0 and 1 if
        unknown); None if a reward is unbounded."""
        if "interval" not in self._known:
            corners = [self.at(values) for values in self._bounds("")]
            self._known["interval"] = interval(min(corners), max(corners)) if corners else None
        found: Interval | None = self._known["interval"]
        return found

    @property
    def divides_by_zero(self) -> bool:
        """True if the score divides by 0 at a bound of its rewards."""
        if "/" not in self._known:
            divides = any(getattr(node, "operator", "") == "/" for node in walk(self.score.expr))
            self._known["/"] = divides and not all(
                self._at(values).is_bounded for values in self._bounds("")
            )
        found: bool = self._known["/"]
        return found

    def change_by(self, name: str, least: Collection[str] = ()) -> list[float]:
        """Return how much the score changes if one reward goes from its least to its greatest
        value, for all combinations of the other rewards' bounds (0 and 1 if unknown). Rewards in
        `least` stay at their least value."""
        key = ("change", name, *least)
        if key not in self._known:
            found = self.ranges[name] or BOOL
            self._known[key] = [
                self.at({**others, name: found.hi}) - self.at({**others, name: found.lo})
                for others in (self._bounds(name) if found.is_bounded else ())
                if all(others[n] == (self.ranges[n] or BOOL).lo for n in least if n in others)
            ]
        changes: list[float] = self._known[key]
        return changes

    def _bounds(self, without: str) -> list[dict[str, float]]:
        others = {n: r or BOOL for n, r in self.ranges.items() if n != without}
        if len(others) > MOST or not all(r.is_bounded for r in others.values()):
            return []
        bounds = itertools.product(*(dict.fromkeys((r.lo, r.hi)) for r in others.values()))
        return [dict(zip(others, each, strict=True)) for each in bounds]


class _Body:
    """Evaluates the expressions of a body to intervals."""

    def __init__(self, rollout: Mapping[str, Interval], depth: int) -> None:
        self.rollout = rollout
        self.depth = depth
        self.locals: dict[str, Interval] = {}
        self.rollouts: set[str] = set()
        self.scope = Scope()

    def function(self, function: Function, given: Mapping[str, Interval]) -> Interval:
        self.scope = function.scope
        for field in function.fields:
            if isinstance(field.type, ast.NamedType) and field.type.name == "Rollout":
                self.rollouts.add(field.name)
            elif field.name not in given and field.default is not None:
                self.locals[field.name] = self.expr(field.default)
            else:
                self.locals[field.name] = given.get(field.name, ANY)
        for statement in function.statements:
            match statement:
                case ast.Assign():
                    self.locals[statement.path.text] = self.expr(statement.value)
                case ast.TypedAssign():
                    self.locals[statement.name] = self.expr(statement.value)
                case ast.Return():
                    return self.expr(statement.value)
        return ANY

    def expr(self, node: ast.Expr) -> Interval:
        match node:
            case ast.Integer() | ast.Number() | ast.Quantity() | ast.Bool():
                return point(float(node.value))
            case ast.String() if node.value in ENDS:
                return point(float(ENDS.index(node.value)))
            case ast.Path():
                return self._path(node)
            case ast.Unary():
                operand = self.expr(node.operand)
                operators = {"-": "neg", "not": "not"}
                if node.operator not in operators:
                    return operand
                return TRANSFER[operators[node.operator]](operand)
            case ast.Binary() if node.operator in OPERATORS:
                args = self.expr(node.left), self.expr(node.right)
                return TRANSFER[OPERATORS[node.operator]](*args)
            case ast.Conditional():
                parts = node.test, node.then, node.otherwise
                return TRANSFER["where"](*(self.expr(part) for part in parts))
            case ast.Call():
                return self._call(node)
        return ANY

    def _path(self, node: ast.Path) -> Interval:
        head = node.parts[0]
        if head in self.rollouts:
            return self.rollout.get(node.parts[-1], ANY)
        if head in self.locals:
            return self.locals[head]
        found = self.scope.lookup(node.parts)
        if isinstance(found, Constant) and isinstance(found.value, int | float):
            return point(float(found.value))
        return ANY

    def _call(self, node: ast.Call) -> Interval:
        name = node.function.text
        if name in TEXT_RESULTS:
            return TEXT_RESULTS[name]
        args = [self.expr(arg.value) for arg in node.args]
        found = self.scope.lookup(node.function.parts)
        if isinstance(found, Function) and self.depth < DEPTH:
            order = [field.name for field in found.fields]
            keys = [arg.name or order[i] for i, arg in enumerate(node.args)]
            inner = _Body(self.rollout, self.depth + 1)
            return inner.function(found, dict(zip(keys, args, strict=True)))
        return TRANSFER[name](*args) if name in TRANSFER else ANY


# ---- Python rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonReward:
    """A reward in Python: its definition, its text, and its side effects (`uses`)."""

    reward: RewardDecl
    function: PythonFunction
    definition: python.FunctionDef | python.AsyncFunctionDef
    module: python.Module
    source: SourceFile
    top: str
    """the top-level definition that contains it"""
    uses: tuple[Use, ...]
    known: dict[object, Any]
    """answers to questions about its text, which views share"""

    def once(self, question: Callable[[PythonReward], T]) -> T:
        """Return `question(self)`, computed once for all views: it may depend on the Python text
        alone."""
        if question not in self.known:
            self.known[question] = question(self)
        answer: T = self.known[question]
        return answer

    def span(self, use: Use) -> Span:
        start = self.source.line_starts[use.line - 1]
        return Span(self.source.name, start + use.column, start + use.end_column)

    def at(self, node: python.AST) -> Span:
        """Return the span from a node's start to the end of its first line."""
        return first_line(self.source, node)

    @property
    def definition_span(self) -> Span:
        return first_line(self.source, self.definition)


def first_line(source: SourceFile, node: python.AST) -> Span:
    """Return the span of a Python node's first line."""
    line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
    start = source.line_starts[line - 1]
    return Span(source.name, start + column, start + len(source.line(line)))


def called_name(call: python.Call) -> str:
    """Return the last name of what is called: `dumps` for `json.dumps(x)`; "" without one."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def python_rewards(view: View) -> list[PythonReward]:
    """Return the Python rewards of the program. Each is read from its file, once for all rules and
    profiles."""
    if python_rewards not in view.answers:
        view.answers[python_rewards] = _python_rewards(view)
    known: list[PythonReward] = view.answers[python_rewards]
    return known


def _python_rewards(view: View) -> list[PythonReward]:
    found = []
    for reward in view.program.rewards.values():
        body = reward.body
        if not isinstance(body, PythonFunction) or view.folder is None:
            continue
        key = ("reward", body.module, body.name)
        if key not in view.shared.answers:
            view.shared.answers[key] = _read((view.folder / body.module).read_text("utf-8"), body)
        module, called, reached, text, known = view.shared.answers[key]
        found.append(
            PythonReward(
                reward=reward,
                function=body,
                definition=called.definition,
                module=module,
                source=view.sources.setdefault(body.module, SourceFile(body.module, text)),
                top=called.top,
                uses=reached,
                known=known,
            )
        )
    return found


def _read(
    text: str, body: PythonFunction
) -> tuple[python.Module, PythonCallable, tuple[Use, ...], str, dict[object, Any]]:
    from forgedsl.hir.pyimport import callables, parsed  # most programs have no Python
    from forgedsl.types.effects import uses

    module = parsed(text)
    called = callables(module)[body.name]
    return module, called, uses(module, called.top), text, {}


def place_of(reward: RewardDecl, view: View, setting: str = "") -> Span:
    """Return the span of a setting of a reward, else of the reward's name."""
    if setting and reward.settings[setting].origin.span is not None:
        return reward.settings[setting].origin.span  # type: ignore[return-value]
    return view.program.spans.get(reward.name, reward.span)


DIRECTED = ("math_equal", "exact", "think_tags", "overlong", "contains", "reasoning_gym")


def inverted(score: Score) -> list[str]:
    """Return the library rewards whose increase lowers the score."""
    found = []
    for name, reward in score.rewards.items():
        effects = score.change_by(name) if _is_directed(reward) else []
        if effects and max(effects) <= 0 and min(effects) < 0:
            found.append(name)
    return found


def _is_directed(reward: RewardDecl) -> bool:
    body = reward.body
    return isinstance(body, Constructor) and body.name in DIRECTED and body.args.get("text") is None
