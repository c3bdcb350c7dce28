"""Rubrics for rules: the weight of each reward in a score.

rubric -> {reward: weight}    its score as a sum of weighted rewards; None if it is not one
View   -> the rewards that its scores add with a positive weight
"""

from __future__ import annotations

from forgedsl.ir.program import Constant, Decl, Scope
from forgedsl.lint.view import View
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A reward of a rubric with its weight and span."""

    weight: float
    span: Span


def weights(rubric: Decl) -> dict[str, Term] | None:
    """Return the score of a rubric as a sum of weighted rewards; None if it is not one."""
    score = rubric.settings["score"].value
    terms = _linear(score.expr, score.scope)
    if terms is None:
        return None
    found: dict[str, Term] = {}
    for name, term in terms:
        before = found[name].weight if name in found else 0.0
        found[name] = Term(weight=before + term.weight, span=term.span)
    found.pop("", None)
    return found


def _linear(node: ast.Expr, scope: Scope) -> list[tuple[str, Term]] | None:
    """Return (reward, weight) of a linear expression; constants have the name ""."""
    match node:
        case ast.Integer() | ast.Number():
            return [("", Term(weight=float(node.value), span=node.span))]
        case ast.Path():
            found = scope.lookup(node.parts)
            if isinstance(found, Constant) and isinstance(found.value, int | float):
                return [("", Term(weight=float(found.value), span=node.span))]
            return [(node.text, Term(weight=1.0, span=node.span))]
        case ast.Unary(operator="-"):
            return _scaled(_linear(node.operand, scope), -1.0, node.span)
        case ast.Binary(operator="+" | "-"):
            left, right = _linear(node.left, scope), _linear(node.right, scope)
            if left is None or right is None:
                return None
            sign = 1.0 if node.operator == "+" else -1.0
            return [*left, *(_scaled(right, sign, None) or [])]
        case ast.Binary(operator="*" | "/"):
            left, right = _linear(node.left, scope), _linear(node.right, scope)
            return _product(left, right, node)
    return None


def _product(
    left: list[tuple[str, Term]] | None, right: list[tuple[str, Term]] | None, node: ast.Binary
) -> list[tuple[str, Term]] | None:
    if left is None or right is None:
        return None
    if all(name == "" for name, _ in right):
        factor = sum(term.weight for _, term in right)
        if node.operator == "/":
            return _scaled(left, 1 / factor, node.span) if factor else None
        return _scaled(left, factor, node.span)
    if node.operator == "*" and all(name == "" for name, _ in left):
        return _scaled(right, sum(term.weight for _, term in left), node.span)
    return None


def _scaled(
    terms: list[tuple[str, Term]] | None, factor: float, span: Span | None
) -> list[tuple[str, Term]] | None:
    if terms is None:
        return None
    return [(n, Term(weight=t.weight * factor, span=span or t.span)) for n, t in terms]


def positive_rewards(view: View) -> dict[str, Span]:
    """Return the rewards that the flow's score adds with a positive weight, each with the place of
    its term."""
    if positive_rewards not in view.answers:
        used = {step.receiver for step in view.program.flow if Role.SCORES in step.roles}
        rewards, rubrics = view.program.rewards, view.program.rubrics
        found = {name: rewards[name].span for name in used & rewards.keys()}
        for name in used & rubrics.keys():
            terms = weights(rubrics[name]) or {}
            found |= {reward: term.span for reward, term in terms.items() if term.weight > 0}
        view.answers[positive_rewards] = found
    known: dict[str, Span] = view.answers[positive_rewards]
    return known
