"""X864 overwritten: a result is computed, and overwritten before anything reads it.

    acc = 1.0 if answer(response) == target else 0.0
    acc = 1.0                                        # fires: the comparison has no effect
    return acc * brevity(response)

    score = 0.0
    score = grade(response, target)                  # silent: only a first value is overwritten

Such a line is left over from a trial, and the run trains on what it says: here each answer is
right (CoursIA #13614 had a correctness that was 0 throughout). Remove one of the two. The rule
fires if both assignments stand in one block, the first one compares, chooses, computes or calls a
function of the file, and no statement between them reads the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for part, node in found_in(view, _overwritten):
        yield finding(
            f"{part.what} computes `{_assigned(node)[0]}`, and overwrites it before anything reads "
            "it",
            part.span,
            related=(label(view, "has no effect", part.file, node),),
            help="remove one of the two assignments",
        )


def _overwritten(part: Part) -> python.stmt | None:
    """Return an assignment of a computed value that the same block overwrites."""
    import ast as python

    functions = {
        node.name
        for node in part.file.module.body
        if isinstance(node, python.FunctionDef | python.AsyncFunctionDef)
    }
    for body in _blocks(part):
        last: dict[str, python.stmt] = {}
        for node in body:
            name, value = _assigned(node)
            read = {
                n.id for n in python.walk(value if name else node) if isinstance(n, python.Name)
            }
            for each in read & last.keys():
                del last[each]
            if not name:
                continue
            if name in last:
                return last[name]
            if not name.startswith("_") and _is_computed(value, functions):
                last[name] = node
    return None


def _blocks(part: Part) -> Iterator[list[python.stmt]]:
    """Yield the lists of statements inside of the functions that a part reaches."""
    import ast as python

    kinds = python.FunctionDef | python.AsyncFunctionDef
    for root in (node for node in part.nodes() if isinstance(node, kinds)):
        inner = [n for n in python.walk(root) if isinstance(n, kinds | python.Lambda)]
        if len(inner) > 1:
            continue  # a function inside may read the name later
        for node in python.walk(root):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list):
                    yield body


def _assigned(node: python.stmt) -> tuple[str, python.AST]:
    """Return the name and the value of a plain assignment; ("", node) for other statements."""
    import ast as python

    match node:
        case python.Assign(targets=[python.Name(id=name)], value=value):
            return name, value
        case python.AnnAssign(target=python.Name(id=name), value=python.expr() as value):
            return name, value
    return "", node


def _is_computed(value: python.AST, functions: set[str]) -> bool:
    import ast as python

    if isinstance(value, python.Call):
        inner = [*value.args, *(word.value for word in value.keywords)]
        own = getattr(value.func, "id", "") in functions
        plain = getattr(value.func, "id", "") in ("float", "int", "bool", "min", "max", "round")
        return own or (plain and any(_is_computed(each, functions) for each in inner))
    return isinstance(value, python.Compare | python.IfExp | python.BoolOp | python.BinOp)
