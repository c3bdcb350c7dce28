"""X802 signature: the parameters of a Python reward, loss or agent do not fit its call.

A reward is a function, synchronous or asynchronous, or an object with `__call__`. Its arguments are
chosen by parameter name: `prompt`, `messages`, `response`, `target`, `rollout`, `row`, or a column
of the row. Parameters with other names are filled by position: `(prompt, response, target)`, or
`(rollout, target)`. Annotations, if there are any, must agree with the declaration.

    def score(text): ...                                   # fires: what is `text`?
    def score(prompt, target): ...                         # fires: no response
    def score(prompt, response, target) -> str: ...        # fires: a reward is a number
    def score(response, level): ...                        # silent: `level` is a column
    def score(completions, answer, **kwargs): ...          # silent: the form of TRL, lists of one

A loss is a class with `torch.nn.Module` as base. `forward` takes the fields that the loss declares,
and `seq_id`, `num_tokens`, `num_sequences`, by name.

An agent is a class with `forgedsl.Agent` as base and a method `async def run(self, task, model)`.

The file is read, never imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.syntax import ast

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "E")
NUMBERS = ("float", "int", "bool", "f32", "Any", "np.float32", "np.float64")
PYTHON_TYPES = {"str": "str", "int": "int", "float": "float", "f32": "float", "bool": "bool"}
NAMES = "parameters are called `prompt`, `messages`, `response`, `target`, `rollout`, or a column"
PLAIN = ("str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes")


def check(view: View) -> Findings:
    for found in python_rewards(view):
        problem = _problem(found, view)
        if problem:
            yield finding(
                f"`{found.definition.name}` {problem}",
                place_of(found.reward, view),
                related=(Label(text="defined here", span=found.definition_span),),
                help="`procs` is for functions that are no `async def`"
                if "concurrency" in problem
                else f"define it as `(prompt, response, target) -> float`: {NAMES}",
            )


def _problem(found: PythonReward, view: View) -> str:
    inputs = inputs_of(found.function)
    if isinstance(inputs, str):
        return inputs
    if found.reward.settings["concurrency"].origin.layer != "default" and (
        not found.function.asynchronous
    ):
        return "is no `async def`, and has a `concurrency`"
    if inputs.lists:
        return ""
    result = _text(found.definition.returns)
    if result and result not in NUMBERS:
        return f"returns {result}, a reward is a number"
    return _types(found, inputs, view)


def _types(found: PythonReward, inputs: Inputs, view: View) -> str:
    """Check annotations: the response is a string, the target has its declared type."""
    declared = _declared_target(found.reward.name, view)
    arguments = found.definition.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for parameter in every:
        source, written = inputs.by_name.get(parameter.arg, ""), _text(parameter.annotation)
        plain = written.partition("[")[0]
        if plain not in PLAIN:
            continue
        if source in ("prompt", "response") and plain != "str":
            return f"takes a {source} of type {plain}, a {source} is str"
        if source == "rollout":
            return f"is given the rollout as `{parameter.arg}`, not {plain}: {NAMES}"
        if source == "target" and declared and plain != declared:
            return f"takes a target of type {plain}, declared is {declared}"
    return ""


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
