"""Runs the Python rewards and environment classes of a program on labels (`lint.follow.run`).

View -> a Flow for each reward, and for each method of an environment that the run calls
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from forgedsl.diagnostics import Label
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.ir.program import PythonEnvironment, PythonFunction
from forgedsl.lint.environments import PythonClass
from forgedsl.lint.follow.files import File, Files, Function
from forgedsl.lint.follow.run import Flow
from forgedsl.lint.follow.state import class_methods, is_object
from forgedsl.lint.follow.values import (
    ANSWER,
    ARGUMENTS,
    IS_TARGET,
    TEXT,
    Labels,
    Value,
    defaults,
    positional,
    source,
)
from forgedsl.lint.prompts import drawn_from, is_text
from forgedsl.lint.rewards import PythonReward, first_line
from forgedsl.lint.view import View
from forgedsl.records import dataclass, replace
from forgedsl.source import SourceFile, Span

ENTRIES = ("__init__", "reset", "step", "run", "call_tool", "close")
"""methods of an environment that a run calls, beside its tools"""
GIVEN = {"reset": ("task", "rng"), "run": ("task", "model"), "step": ("turn",)}
ROUNDS = 2
"""runs of all methods after which attributes are taken as known"""
NUMBER_TYPE = re.compile(r"(int|float)( \| (int|float|None))*|Optional\[(int|float)\]")
"""annotation of a number"""
HANDLERS = 12
"""`except` clauses of a program that are tried"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFlow:
    """A run of one method of an environment."""

    name: str
    is_tool: bool
    flow: Flow


T = TypeVar("T")
Failing = tuple[ast.ExceptHandler, ast.Try, T]
"""an `except` clause, its statement, and runs that reach it"""


def files_of(view: View) -> Files:
    """Return the Python files beside the program, read once for all views."""
    assert view.folder is not None
    if "python files" not in view.shared.answers:
        view.shared.answers["python files"] = Files(Path(view.folder))
    found: Files = view.shared.answers["python files"]
    return found


def label(view: View, text: str, file: File, node: ast.AST) -> Label:
    """Return a label at a node of a file that was read."""
    known = view.sources.setdefault(file.path, SourceFile(file.path, file.text))
    span = first_line(known, node)
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if isinstance(node, ast.Call | ast.Compare | ast.BinOp) and first == last:
        end = known.line_starts[first - 1] + (node.end_col_offset or 0)
        span = Span(known.name, span.start, end)
    return Label(text=text, span=span)


# ---- rewards


def reward_flow(view: View, found: PythonReward) -> Flow | None:
    """Return the run of a reward."""
    key = ("flow", found.function.module, found.function.name, *_facts(view, found.function))
    if key not in view.shared.answers:
        view.shared.answers[key] = _reward(view, found, None)
    flow: Flow | None = view.shared.answers[key]
    return flow


def failing_rewards(
    view: View, found: PythonReward
) -> list[tuple[ast.ExceptHandler, ast.Try, Flow]]:
    """Return the runs of a reward in which one of its `except` clauses is reached, one for each."""
    key = ("failing flows", found.function.module, found.function.name,
           *_facts(view, found.function))  # fmt: skip
    if key not in view.shared.answers:
        flow = reward_flow(view, found)
        tried = _handlers(flow) if flow is not None else []
        runs = [(handler, node, _reward(view, found, handler)) for handler, node in tried]
        view.shared.answers[key] = [(h, n, run) for h, n, run in runs if run is not None]
    known: list[Failing[Flow]] = view.shared.answers[key]
    return known


def judged_rewards(view: View, found: PythonReward) -> list[Flow]:
    """Return the runs of a reward on a right answer and on a wrong one."""
    key = ("judged", found.function.module, found.function.name, *_facts(view, found.function))
    if key not in view.shared.answers:
        runs = [_reward(view, found, None, verdict=right) for right in (True, False)]
        view.shared.answers[key] = [run for run in runs if run is not None]
    known: list[Flow] = view.shared.answers[key]
    return known


def judged_environments(view: View, env: PythonClass) -> list[list[MethodFlow]]:
    """Return the runs of an environment on right answers and on wrong ones."""
    key = ("judged", env.env.body.module, env.env.body.name, *_facts(view, env.env.body))
    if key not in view.shared.answers:
        view.shared.answers[key] = [_methods(view, env, None, verdict=v) for v in (True, False)]
    known: list[list[MethodFlow]] = view.shared.answers[key]
    return known


def _reward(
    view: View,
    found: PythonReward,
    failing: ast.ExceptHandler | None,
    *,
    verdict: bool | None = None,
) -> Flow | None:
    file = files_of(view).read(found.function.module)
    inputs = inputs_of(found.function)
    if file is None or not isinstance(inputs, Inputs):
        return None
    node, methods = _definition(file, found)
    if node is None:
        return None
    flow = Flow(file, failing, verdict=verdict)
    flow.methods = methods
    flow.targets = _targets(view)
    if "__init__" in methods:
        flow.call(methods["__init__"], _constants(found.function), bound=True)
        flow.returned.clear()
    given = _given(node, inputs, bool(methods))
    given = {
        name: replace(value, labels=value.labels | flow.targets)
        if IS_TARGET in value.labels
        else value
        for name, value in given.items()
    }
    flow.call(node, given, bound=bool(methods))
    return flow


def _targets(view: View) -> Labels:
    """Return what is known of the targets of all rows: that they are texts, or nothing."""
    if _targets not in view.answers:
        drawn = drawn_from(view)
        known = bool(drawn) and all(is_text(view, dataset) for dataset in drawn)
        view.answers[_targets] = frozenset({ANSWER, TEXT}) if known else frozenset()
    found: Labels = view.answers[_targets]
    return found


def _constants(body: PythonFunction | PythonEnvironment) -> dict[str, Value]:
    """Return the numbers and texts that the program passes to a class."""
    given = {name: getattr(each, "value", each) for name, each in body.args.items()}
    known = {k: v for k, v in given.items() if isinstance(v, str | int | float)}
    return {name: Value(const=value) for name, value in known.items()}


def _facts(view: View, body: PythonFunction | PythonEnvironment) -> tuple[object, ...]:
    """Return what a run depends on beside the files."""
    given = ((k, v.const) for k, v in _constants(body).items()) if body.args else ()
    return (*given, ANSWER in _targets(view))


def _definition(file: File, found: PythonReward) -> tuple[Function | None, dict[str, Function]]:
    """Return the function of a reward in a file that was read, and the methods of its class."""
    wanted = found.definition
    for name, function in file.functions.items():
        if name == wanted.name and function.lineno == wanted.lineno:
            return function, {}
    for node in file.classes.values():
        methods = {item.name: item for item in node.body if isinstance(item, Function)}
        for function in methods.values():
            if function.name == wanted.name and function.lineno == wanted.lineno:
                return function, methods
    return None, {}


def _given(node: Function, inputs: Inputs, is_bound: bool) -> dict[str, Value]:
    given = {name: source(where) for name, where in inputs.by_name.items()}
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)][1 if is_bound else 0 :]
    given |= {name: source(where) for name, where in zip(names, inputs.by_place, strict=False)}
    made = [name for name, value in defaults(node) if is_object(value)]
    return {name: value for name, value in given.items() if name not in made}


# ---- environments


def environment_flows(view: View, env: PythonClass) -> list[MethodFlow]:
    """Return the runs of the methods of an environment. All methods were run ROUNDS times
    before, so that the attributes they set are known."""
    key = ("flows", env.env.body.module, env.env.body.name, tuple(sorted(env.tools)),
           *_facts(view, env.env.body))  # fmt: skip
    if key not in view.shared.answers:
        view.shared.answers[key] = _methods(view, env, None)
    flows: list[MethodFlow] = view.shared.answers[key]
    return flows


def failing_environments(view: View, env: PythonClass) -> list[Failing[list[MethodFlow]]]:
    """Return the runs of an environment in which one of its `except` clauses is reached."""
    key = ("failing flows", env.env.body.module, env.env.body.name, *_facts(view, env.env.body))
    if key not in view.shared.answers:
        tried: dict[int, tuple[ast.ExceptHandler, ast.Try]] = {}
        for each in environment_flows(view, env):
            tried |= {id(h): (h, n) for h, n in _handlers(each.flow)}
        view.shared.answers[key] = [
            (h, n, _methods(view, env, h)) for h, n in list(tried.values())[:HANDLERS]
        ]
    known: list[Failing[list[MethodFlow]]] = view.shared.answers[key]
    return known


def turns_of_environment(view: View, env: PythonClass, most: int) -> list[list[MethodFlow]]:
    """Return the runs of an environment in each of its first `most` turns."""
    key = ("turns", env.env.body.module, env.env.body.name, most, *_facts(view, env.env.body))
    if key not in view.shared.answers:
        view.shared.answers[key] = [_methods(view, env, None, turn=turn) for turn in range(most)]
    known: list[list[MethodFlow]] = view.shared.answers[key]
    return known


def _handlers(flow: Flow) -> list[tuple[ast.ExceptHandler, ast.Try]]:
    found = {id(handler): (handler, node) for handler, node, _ in flow.handlers}
    return list(found.values())[:HANDLERS]


def _methods(
    view: View,
    env: PythonClass,
    failing: ast.ExceptHandler | None,
    *,
    verdict: bool | None = None,
    turn: int | None = None,
) -> list[MethodFlow]:
    file = files_of(view).read(env.env.body.module)
    if file is None:
        return []
    methods = class_methods(file, file.classes.get(env.env.body.name))
    attributes: dict[str, Value] = _class_attributes(file, env)
    runs: list[MethodFlow] = []
    given = tool_numbers(methods, env.tools)
    entries = [name for name in (*ENTRIES, *sorted(env.tools)) if name in methods]
    for last in [False] * ROUNDS + [True]:
        for name in entries:
            flow = Flow(file, failing if last else None, verdict=verdict)
            flow.methods, flow.attributes, flow.turn = methods, attributes, turn
            is_tool = name in env.tools
            flow.call(
                methods[name],
                _constants(env.env.body)
                if name == "__init__"
                else _arguments(methods[name], name, is_tool, given.get(name, {})),
                bound=True,
            )
            if last:
                runs.append(MethodFlow(name=name, is_tool=is_tool, flow=flow))
    return runs


def tool_numbers(
    methods: Mapping[str, Function], tools: frozenset[str]
) -> dict[str, dict[str, str]]:
    """Return the label of each number that the policy passes, by tool and parameter."""
    found: dict[str, dict[str, str]] = {}
    labels = iter(ARGUMENTS)
    for tool in sorted(tools & methods.keys()):
        for each in positional(methods[tool])[1:]:
            kind = ast.unparse(each.annotation) if each.annotation is not None else ""
            if NUMBER_TYPE.fullmatch(kind) and (label := next(labels, "")):
                found.setdefault(tool, {})[each.arg] = label
    return found


def marked(value: Value, label: str) -> Value:
    return replace(value, labels=value.labels | {label})


def _arguments(
    node: Function, name: str, is_tool: bool, numbers: Mapping[str, str]
) -> dict[str, Value]:
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)][1:]
    if is_tool or name == "call_tool":
        given = {each: source("written") for each in names}
        return given | ({k: marked(given[k], v) for k, v in numbers.items()} if is_tool else {})
    pairs = zip(names, GIVEN.get(name, ()), strict=False)
    return {each: source(what) for each, what in pairs if what in ("task", "turn", "model")}


def _class_attributes(file: File, env: PythonClass) -> dict[str, Value]:
    """Return what is known of the names that a class assigns."""
    flow, found = Flow(file), {}
    for name, item in env.items.items():
        value = getattr(item, "value", None)
        if isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(value, ast.expr):
            found[name] = flow.constant(value)
    return found
