"""X862 zip-cut: lists are compared in pairs, and the shorter one decides how many pairs there are.

    return float(all(a == b for a, b in zip(said, target)))                  # fires
    return float(len(said) == len(target) and all(...))                      # silent
    return float(said == target)                                             # silent
    return float(all(a == b for a, b in zip(said, target, strict=True)))     # silent

`zip` ends with the shorter list, and `all` of no pairs is true. An empty answer, or the first item
alone, is then as good as the whole list, and shorter than it. Compare the lists, or their lengths
too (verifiers #763 shows what a policy does with a check that a part of the answer passes). The
rule also fires for a loop over such pairs that returns 0 at the first difference. It is silent if
the code compares a length, and for pairs of neighbours of one list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for part, node in found_in(view, _cut):
        yield finding(
            f"{part.what} compares lists with `zip`, which stops at the shorter one: an empty "
            "list equals every list",
            part.span,
            related=(label(view, "here", part.file, node),),
            help="compare the lists themselves, `said == target`, or their lengths too",
        )


def _cut(part: Part) -> python.AST | None:
    """Return a comparison of all pairs of two lists, in code that compares no lengths."""
    import ast as python

    nodes = [*part.nodes()]
    if any(isinstance(node, python.Compare) and _lengths(node) for node in nodes):
        return None
    for node in nodes:
        match node:
            case python.Call(
                func=python.Name(id="all" | "any" as name),
                args=[python.GeneratorExp() | python.ListComp() as each],
            ):
                op = python.Eq if name == "all" else python.NotEq
                pairs = each.generators[0].iter if len(each.generators) == 1 else None
                if _is_test(each.elt, op) and pairs is not None and _is_zip(pairs):
                    return node
            case python.For(iter=pairs, body=[python.If(test=test, body=[python.Return(), *_])]):
                if _is_test(test, python.NotEq) and _is_zip(pairs):
                    return node
    return None


def _is_test(node: python.expr, op: type[python.cmpop]) -> bool:
    import ast as python

    if isinstance(node, python.BoolOp):
        return any(_is_test(each, op) for each in node.values)
    return isinstance(node, python.Compare) and isinstance(node.ops[0], op)


def _is_zip(node: python.expr) -> bool:
    """True for `zip(a, b)` of two lists, without `strict`."""
    import ast as python

    match node:
        case python.Call(func=python.Name(id="zip"), args=[one, two], keywords=[]):
            roots = [python.unparse(_root(each)) for each in (one, two)]
            return roots[0] != roots[1]
    return False


def _root(node: python.expr) -> python.expr:
    """Return what a slice is taken from."""
    import ast as python

    while isinstance(node, python.Subscript):
        node = node.value
    return node


def _lengths(node: python.Compare) -> bool:
    import ast as python

    return "len(" in python.unparse(node)
