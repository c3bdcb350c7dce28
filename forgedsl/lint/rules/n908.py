"""N908 names-crossed: two arguments stand in each other's place, as their names say.

    loss = rl.grpo(clip_low = beta, clip_high = beta, beta = eps)            # fires
    loss = rl.grpo(clip_low = eps, clip_high = eps, beta = beta)             # silent
    clip(ratio, 1 - clip_high, 1 + clip_low)                                 # fires
    clip(ratio, 1 - clip_low, 1 + clip_high)                                 # silent
    def equal(said, gold): ...
    return float(equal(gold, said))                                          # fires, in Python

Each number is usual alone, and the run starts. But the clip is that of the KL weight, or the wider
range of DAPO (2503.14476) is below 1, where it was meant to be above. The rule fires if a value is
passed to another parameter although the callee has a parameter of its name, which gets something
else; if the lower bound of a clip is made of a name that says `high` and the upper one of a name
that says `low`; and, in Python, if two arguments are exchanged in the only call of a function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Function, PythonFunction
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names, walk

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
LOW = re.compile(r"(^|_)(low|lower|lo|below)(_|$)", re.IGNORECASE)
HIGH = re.compile(r"(^|_)(high|higher|hi|upper|above)(_|$)", re.IGNORECASE)
CLIPS = ("clip", "clamp")


def check(view: View) -> Findings:
    known = view.shared.answers
    if check not in known:  # the text is the same for all profiles
        known[check] = [*_calls(view)], [*_clips(view)]
    calls, clips = known[check]
    for span, passed, taken, given in calls:
        yield finding(
            f"parameter `{taken}` is given `{passed}`, and parameter `{passed}` is given {given}",
            span,
            help=f"pass each name to its own parameter: `{passed} = {passed}`",
        )
    for span, low, high in clips:
        yield finding(
            f"the lower bound of this clip is computed from `{low}`, and the upper one from "
            f"`{high}`",
            span,
            help=f"exchange them: `clip(ratio, 1 - {high}, 1 + {low})`",
        )
    if view.program.environments or any(
        isinstance(r.body, PythonFunction) for r in view.program.rewards.values()
    ):
        yield from _in_python(view)


def _calls(view: View) -> Iterator[tuple[Span, str, str, str]]:
    """Yield the arguments that stand in the place of another: span, name, place, what stands in
    their own place."""
    for call in walk(view.file):
        if not isinstance(call, ast.Call):
            continue
        given = dict(_arguments(view, call))
        for place, value in given.items():
            name = value.parts[0] if isinstance(value, ast.Path) and len(value.parts) == 1 else ""
            own = given.get(name)
            if name == place or own is None or not isinstance(own, ast.Path):
                continue
            if own.parts != (name,):
                yield value.span, name, place, f"`{own.text}`"
                break


def _arguments(view: View, call: ast.Call) -> Iterator[tuple[str, ast.Expr]]:
    """Yield the arguments of a call by the names of their parameters."""
    found = view.program.scope.lookup(call.function.parts)
    fields = found.fields if isinstance(found, Function) else ()
    numbers = [f.name if isinstance(f.type, ast.NamedType) else "" for f in fields]
    for index, argument in enumerate(call.args):
        name = argument.name or (numbers[index] if index < len(numbers) else "")
        if name:
            yield name, argument.value


def _clips(view: View) -> Iterator[tuple[Span, str, str]]:
    """Yield the clips whose bounds are exchanged by the names that they are made of."""
    for decl in view.file.decls:
        if not isinstance(decl, ast.FnDecl):
            continue
        local = {n.path.text: n.value for n in walk(decl.body) if isinstance(n, ast.Assign)}
        for call in walk(decl.body):
            low, high = _bounds(call, local) if isinstance(call, ast.Call) else (None, None)
            one = _named(low, local, HIGH, LOW) if low is not None else ""
            two = _named(high, local, LOW, HIGH) if high is not None else ""
            if one and two:
                yield call.span, one, two


def _bounds(
    call: ast.Call, local: Mapping[str, ast.Expr]
) -> tuple[ast.Expr | None, ast.Expr | None]:
    """Return the bounds of `clip(x, low, high)`, `max(min(x, high), low)` and
    `min(max(x, low), high)`."""
    name, args = call.function.text, [argument.value for argument in call.args]
    if name in CLIPS and len(args) == 3:
        return args[1], args[2]
    inner_name = {"max": "min", "min": "max"}.get(name, "")
    for one, other in (args, args[::-1]) if inner_name and len(args) == 2 else ():
        inner = _value(one, local)
        if isinstance(inner, ast.Call) and inner.function.text == inner_name:
            bounds = [a.value for a in inner.args if _leaves(a.value, local) & _leaves(other, {})]
            bounds = bounds or [a.value for a in inner.args[1:]]
            return (other, bounds[0]) if name == "max" else (bounds[0], other)
    return None, None


def _value(node: ast.Expr, local: Mapping[str, ast.Expr]) -> ast.Expr:
    return local.get(node.text, node) if isinstance(node, ast.Path) else node


def _leaves(node: ast.Expr, local: Mapping[str, ast.Expr]) -> set[str]:
    """Return the names that an expression is made of, without those of the function itself."""
    found, pending, seen = set[str](), [node], set[str]()
    while pending:
        for parts in names(pending.pop()):
            name = ".".join(parts)
            if name in local and name not in seen:
                seen.add(name)
                pending.append(local[name])
            elif name not in local:
                found.add(parts[-1])
    return found


def _named(
    node: ast.Expr, local: Mapping[str, ast.Expr], wanted: re.Pattern[str], other: re.Pattern[str]
) -> str:
    """Return the name of a bound that says one side and not the other, or ""."""
    leaves = sorted(_leaves(node, local))
    if any(other.search(name) for name in leaves):
        return ""
    return next((name for name in leaves if wanted.search(name)), "")


def _in_python(view: View) -> Findings:
    """Yield calls in the Python of the program with two arguments in each other's place."""
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for part, call in found_in(view, _exchanged):
        one, two = map(_text, call.args[:2])
        name, rest = _text(call.func), ", ..." if len(call.args) > 2 else ""
        here: Label = label(view, "exchanged", part.file, call)
        yield finding(
            f"{part.what} passes `{one}` and `{two}` to `{name}`, whose parameters are `{two}` and "
            f"`{one}`",
            part.span,
            related=(here,),
            help=f"`{name}({two}, {one}{rest})`, or pass them by name",
        )


def _text(node: python.AST) -> str:
    import ast as python

    return python.unparse(node)


def _exchanged(part: Part) -> python.Call | None:
    """Return a call of a function of the file whose first two arguments are names that belong to
    each other's parameters, if no other call has them in order."""
    import ast as python

    functions = {
        node.name: [argument.arg for argument in node.args.args]
        for node in part.file.module.body
        if isinstance(node, python.FunctionDef | python.AsyncFunctionDef)
    }
    crossed: dict[str, python.Call] = {}
    for node in python.walk(part.file.module):
        if isinstance(node, python.Call) and getattr(node.func, "id", "") in functions:
            name = node.func.id  # type: ignore[attr-defined]
            wanted = functions[name][:2]
            given = [each.id if isinstance(each, python.Name) else "" for each in node.args[:2]]
            if len(wanted) == 2 and given == wanted[::-1]:
                crossed.setdefault(name, node)
            elif given == wanted:
                functions = functions | {name: []}
    reached = {id(node) for node in part.nodes()}
    found = (node for name, node in crossed.items() if functions[name])
    return next((node for node in found if id(node) in reached), None)
