"""X802 signature: a Python reward cannot be called as rewards are called.

A reward is `(prompt, response, target) -> float`, or `(rollout, target) -> float`, synchronous or
asynchronous. Further parameters need defaults. Annotations, where there are any, must agree with
the declaration.

    def score(response): ...                               # fires: one parameter
    def score(prompt, response): ...                       # fires: two are rollout and target
    def score(prompt, response, target, *, tol): ...       # fires: `tol` has no default
    def score(prompt, response, target) -> str: ...        # fires: a reward is a number

The file is read, never imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Diagnostic, Label
from forgedsl.lint.finding import Finding
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.syntax import ast

if TYPE_CHECKING:
    import ast as python

CODE = "X802"
NAME = "signature"
LEVEL = "E"
finding = Finding(CODE, NAME, LEVEL)
NUMBERS = ("float", "int", "bool", "f32", "Any", "np.float32", "np.float64")
PYTHON_TYPES = {"str": "str", "int": "int", "float": "float", "f32": "float", "bool": "bool"}
PROMPTS = ("prompt", "question")
RESPONSES = ("response", "completion", "output")
PLAIN = ("str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes")


def check(view: View) -> Iterator[Diagnostic]:
    for found in python_rewards(view):
        problem = _problem(found, view)
        if problem:
            yield finding(
                f"`{found.definition.name}` {problem}",
                place_of(found.reward, view),
                related=(Label(text="defined here", span=found.definition_span),),
                help="define it as `(prompt, response, target) -> float`, or `(r, target)`",
            )


def _problem(found: PythonReward, view: View) -> str:
    arguments = found.definition.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    most = 99 if arguments.vararg else len(positional)
    if not any(required <= count <= most for count in (2, 3)):
        needs = f"takes {most}" if most < 2 else f"needs {required}"
        return (
            f"{needs} argument{'' if needs[-2:] == ' 1' else 's'}; a reward is given three, or two"
        )
    for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is None:
            return f"needs `{name.arg}`, which nothing gives it"
    result = _text(found.definition.returns)
    if result and result not in NUMBERS:
        return f"returns {result}, a reward is a number"
    return _types(found, positional, view)


def _types(found: PythonReward, positional: list[python.arg], view: View) -> str:
    """Annotations against the declaration: the response is text, the target what is declared."""
    spread = len(positional) >= 3
    if not spread and _is_text(positional, found):
        names = ", ".join(argument.arg for argument in positional)
        return f"is given the rollout and the target, not ({names})"
    if spread:
        response = _text(positional[1].annotation)
        if response in PLAIN and response != "str":
            return f"takes a response of type {response}, a response is str"
    target = positional[2] if spread else positional[1] if len(positional) > 1 else None
    declared = _declared_target(found.reward.name, view)
    written = _text(target.annotation).partition("[")[0] if target is not None else ""
    if declared and written in PLAIN and written != declared:
        return f"takes a target of type {written}, declared is {declared}"
    return ""


def _is_text(positional: list[python.arg], found: PythonReward) -> bool:
    """Whether two parameters are meant as prompt and response."""
    if found.definition.args.vararg or len(positional) != 2:
        return False
    first, second = positional
    named = first.arg in PROMPTS or first.arg in RESPONSES or second.arg in RESPONSES
    return named or _text(first.annotation) in PLAIN


def _declared_target(name: str, view: View) -> str:
    for decl in view.file.decls:
        if isinstance(decl, ast.FnDecl) and decl.name == name and len(decl.fields) > 1:
            type_ = decl.fields[1].type
            if isinstance(type_, ast.GenericType):
                return type_.name
            if isinstance(type_, ast.NamedType):
                return PYTHON_TYPES.get(type_.name, "")
    return ""


def _text(node: python.expr | None) -> str:
    import ast as python

    if isinstance(node, python.Constant):
        return str(node.value)
    return python.unparse(node) if node is not None else ""
