"""Emits the program module: the pure functions of a job, as Python.

    hir.Program  ->  emit_program  ->  text of a Python module (Job.program)

    dataset_gsm8k_prompt(row)         columns, over a Row
    reward_brevity(r)                 rewards written in the language, over a Rollout
    rubric_math_score(scores)         the score, from {reward name: value}
    advantage_group_norm(r)           over the [G] rewards of a group (torch)
    advantage_lite_ppo(r, group)      over the [B] rewards of a step; `group` has prompt numbers
    advantage_gae(r, value, mask, group)   over the tokens of a step, padded: [B, T]
    filter_mixed(score)               True to keep a group

Names of library functions contain their path: `rl.mean_baseline` is `advantage_rl_mean_baseline`.
Each statement has a comment with its source place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from forgedsl.diagnostics import Reporter, Severity
from forgedsl.emit.columns import check_column
from forgedsl.emit.expressions import ATOM, Text, render
from forgedsl.emit.places import located, place
from forgedsl.emit.scalars import LEVEL, Scalars, long_text
from forgedsl.ir import program as ir
from forgedsl.losses.infer import infer
from forgedsl.losses.reductions import over_step, over_tokens
from forgedsl.losses.tree import Tree, Value
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role
from forgedsl.types.ops import BY_NAME
from forgedsl.types.tensors import axes_of

COLUMNS = ("prompt", "target", "chat", "chosen", "rejected", "level")
TENSOR_KINDS = ("advantage", "filter")
LONGEST = 89
"""characters that fit on a line after an indented `return `"""
HELPERS = sorted((
    "after", "before", "chat", "clamp", "env", "first", "item", "lower", "matches", "paragraphs",
    "record", "same", "scan_back", "sharegpt", "sibling_max", "sibling_min", "sibling_sum", "strip",
    "text", "token_count", "token_max", "token_min", "token_next", "token_sum",
    *(name for name in BY_NAME if name != "abs"),
))  # fmt: skip


def function_name(kind: str, *parts: str) -> str:
    """Return the name of a generated function: `function_name("dataset", "gsm8k", "prompt")`."""
    return "_".join((kind, *(part.replace(".", "_") for part in parts)))


def call_name(kind: str, name: str, constants: Mapping[str, object]) -> str:
    """Return the name of an advantage or filter for a set of constant arguments.

    Example:
        call_name("advantage", "scaled", {"by": 3.0}) == "advantage_scaled_by_3_0"
    """
    words = (f"{key}_{value}".replace("-", "minus_") for key, value in sorted(constants.items()))
    return function_name(kind, name, *(re.sub(r"\W", "_", word) for word in words))


def emit_program(program: ir.Program, sources: Mapping[str, SourceFile] | None = None) -> str:
    """Return the text of the program module.

    Raises:
        SourceError: a body has mistakes of axes or dtypes.
    """
    reporter = Reporter()
    text = ProgramWriter(program, sources or {}, reporter).module()
    if reporter.has_errors:
        from forgedsl.errors import SourceError

        raise SourceError(tuple(d for d in reporter if d.severity is Severity.ERROR))
    return text


class ProgramWriter:
    """Collects the functions of one program."""

    def __init__(
        self, program: ir.Program, sources: Mapping[str, SourceFile], reporter: Reporter
    ) -> None:
        self.program = program
        self.sources = sources
        self.reporter = reporter
        self.functions: list[str] = []
        self.texts: dict[str, str] = {}
        self.names: dict[tuple[str, str], str] = {}
        self._scored = {key: (f'scores["{key}"]', "number") for key in program.rewards}

    def bodies(self, sound: Collection[str] = ()) -> None:
        """Write all functions. An advantage or filter in `sound` has been checked already, so it is
        written only for calls that give it constants."""
        for name, dataset in sorted(self.program.datasets.items()):
            self._dataset(name, dataset)
        for name, reward in sorted(self.program.rewards.items()):
            if isinstance(reward.body, ir.Function):
                self._scalar_function(function_name("reward", name), reward.body)
        for name, rubric in sorted(self.program.rubrics.items()):
            self._rubric(name, rubric)
        for name, function in sorted(self.program.functions.items()):
            if function.kind in TENSOR_KINDS:
                for constants in self._constants(name):
                    if constants or name not in sound:
                        called = call_name(function.kind, name, constants)
                        self._tensor_function(called, function, constants)
            elif any(weight_of(step) == name for step in self.program.flow):
                self._called(function)

    def module(self) -> str:
        """The whole text."""
        self.bodies()
        body = "\n\n\n".join(self.functions)
        used = [name for name in HELPERS if re.search(rf"(?<![.\w]){name}\(", body)]
        imports = ["import torch"] if "torch." in body else []
        if used:
            imports += [""] * bool(imports) + helper_import(used)
        texts = [line for text, name in self.texts.items() for line in long_text(name, text)]
        header = ['"""Pure functions of a job, generated by ForgeDSL."""']
        head = [*header, *([""] if imports else []), *imports, *([""] if texts else []), *texts]
        return "\n\n\n".join(["\n".join(head), *self.functions]) + "\n"

    def _scalars(self, scope: ir.Scope, locals_: dict[str, tuple[str, str]]) -> Scalars:
        return Scalars(scope, self.reporter, locals_, self.texts, self._called, self._read_file)

    def _read_file(self, path: ast.String) -> str:
        """Read a file relative to the one that names it."""
        typed = path.span.file.startswith("<")  # named in an override on the command line
        beside = Path(self.program.file if typed else path.span.file)
        return beside.parent.joinpath(path.value).read_text("utf-8")

    def _line(self, code: str, span: Span) -> str:
        lines = "\n".join(located(code, place(span, self.sources))).split("\n")
        return "\n".join(f"    {line}" for line in lines)

    def _return(self, scalars: Scalars, code: str, value: ast.Expr) -> str:
        """Write `return value`, whose text is `code`; a long sum has a line for each operand."""
        if len(code) > LONGEST and not self.reporter.has_errors:
            code = _wrapped(scalars, value) or code
        return self._line(f"return {code}", value.span)

    def _define(self, signature: str, doc: str, lines: list[str]) -> None:
        self.functions.append("\n".join([f"def {signature}:", f'    """{doc}"""', *lines]))

    def _dataset(self, name: str, dataset: ir.Decl) -> None:
        for column in COLUMNS:
            setting = dataset.settings.get(column)
            if setting is None or not isinstance(setting.value, ir.Deferred):
                continue
            deferred = setting.value
            scalars = self._scalars(deferred.scope, {"row": ("row", "row")})
            text, type_ = scalars.expr(deferred.expr)
            check_column(scalars, column, deferred.expr, type_)
            returned = self._return(scalars, text.code, deferred.expr)
            signature = f"{function_name('dataset', name, column)}(row)"
            self._define(signature, f"`{column}` of a row of {name}.", [returned])

    def _rubric(self, name: str, rubric: ir.Decl) -> None:
        score = rubric.settings["score"].value
        assert isinstance(score, ir.Deferred)
        text, type_ = self._scalars(score.scope, self._scored).expr(score.expr)
        if type_ not in ("number", "any"):
            scalars = self._scalars(score.scope, self._scored)
            scalars.error(
                "T702", "dtype", f"a score must be a number, not a {type_}", score.expr.span
            )
        returned = self._line(f"return {text.code}", score.expr.span)
        doc = "The score of a rollout from the values of its rewards."
        self._define(f"{function_name('rubric', name)}(scores)", doc, [returned])

    def _called(self, function: ir.Function) -> str:
        """Emit a function of the language, once; return its Python name."""
        key = (function.module, function.name)
        if key not in self.names:
            self.names[key] = scalar_name(function)
            self._scalar_function(self.names[key], function)
        return self.names[key]

    def _scalar_function(self, name: str, function: ir.Function) -> None:
        locals_: dict[str, tuple[str, str]] = {}
        params = []
        for field in function.fields:
            locals_[field.name] = (field.name, scalar_type(field.type))
            params.append(field.name)
            if field.default is not None:
                default, _ = self._scalars(function.scope, {}).expr(field.default)
                params[-1] += f"={default.code}"
        scalars = self._scalars(function.scope, locals_)
        lines = []
        for statement in function.statements:
            text, type_ = scalars.expr(statement.value)
            match statement:
                case ast.Assign():
                    lines.append(self._line(f"{statement.path.text} = {text.code}", statement.span))
                    locals_[statement.path.text] = (statement.path.text, type_)
                case ast.TypedAssign():
                    lines.append(self._line(f"{statement.name} = {text.code}", statement.span))
                    locals_[statement.name] = (statement.name, type_)
                case ast.Return():
                    if function.kind == "reward" and type_ in ("str", "list", "none"):
                        message = f"a reward must be a number, not a {type_}"
                        scalars.error("T702", "dtype", message, statement.value.span)
                    wrap = "float({})" if function.kind == "reward" else "{}"
                    lines += self._returning(scalars, statement.value, wrap)
        doc = summary(function)
        self._define(f"{name}({', '.join(params)})", docstring(doc), lines)

    def _constants(self, name: str) -> list[dict[str, object]]:
        """Return the sets of constant arguments with which the flow calls a function."""
        flow = self.program.flow
        calls = [s for s in flow if Role.COMPUTES in s.roles and s.receiver == name]
        found = [{key: value.value for key, value in step.settings.items()} for step in calls]
        return [c for i, c in enumerate(found) if c not in found[:i]] or [{}]

    def _returning(self, scalars: Scalars, value: ast.Expr, wrap: str) -> list[str]:
        """Write `return value`; a conditional becomes an `if` statement."""
        if not isinstance(value, ast.Conditional):
            code = scalars.expr(value)[0].code
            if wrap == "{}":
                return [self._return(scalars, code, value)]
            return [self._line(f"return {wrap.format(code)}", value.span)]
        test = self._line(f"if {scalars.expr(value.test)[0].code}:", value.test.span)
        then = "\n".join(self._returning(scalars, value.then, wrap))
        indented = "\n".join(f"    {line}" for line in then.splitlines())
        return [test, indented, *self._returning(scalars, value.otherwise, wrap)]

    def _tensor_function(
        self, name: str, function: ir.Function, constants: Mapping[str, object]
    ) -> None:
        tree = infer(function, self.reporter, constants)
        if tree is None:
            return
        types = {f.name: f.type for f in function.fields if isinstance(f.type, ast.TensorType)}
        params = list(types)
        if over_step(function):
            params.append("group")
        long = [name for name, type_ in types.items() if "T" in (axes_of(type_) or ())]
        size = f"len({params[0]})" if long else f"{params[0]}.numel()"
        owner = next((name for name in types if types[name].dtype != "bool"), params[0])
        from forgedsl.emit.torch import Writer  # imported late: `forgec lint` seldom needs it

        writer = Writer(tree, self.sources, leaf=group_leaf(size), owner=owner, render=padded)
        end = tree.output("result")
        writer.taken |= set(params)
        writer.write([end])
        lines = [f"    {line}" for line in writer.lines]
        code = returned(tree, end, writer.text(end), params[0])
        if over_tokens(function) and tree.values[end].type.tokens is None:
            text = writer.text(end).inside(ATOM)
            each = f"{text}[:, None]" if tree.values[end].type.axes else text
            code = f"{each} * torch.ones_like({long[0]}, dtype={owner}.dtype)"
        lines.append(self._line(f"return {code}", function.statements[-1].span))
        doc = summary(function)
        self._define(f"{name}({', '.join(params)})", docstring(doc), lines)


def weight_of(step: ir.FlowStep) -> str | None:
    """Return the name of the function that weights the rows of a draw; None if it has none."""
    weight = step.settings.get("weight")
    return None if weight is None else str(weight.value.name)


def scalar_name(function: ir.Function) -> str:
    """Return the Python name of a function over numbers and strings."""
    module = re.sub(r"\W", "_", function.module)
    return function_name("fn", *filter(None, (module, function.name)))


def returned(tree: Tree, end: int, text: Text, first: str) -> str:
    """Return the expression that a generated advantage or filter returns."""
    value = tree.values[end]
    if tree.kind == "filter":
        return f"bool({text.code})"
    return text.code if value.type.axes else f"torch.full_like({first}, {text.code})"


def _wrapped(scalars: Scalars, value: ast.Expr) -> str:
    """Return a long sum with an operand on each line, as the formatter wraps it; "" for others."""
    operands: list[ast.Expr] = []
    while isinstance(value, ast.Binary) and value.operator == "+":
        operands.insert(0, value.right)
        value = value.left
    if not operands:
        return ""
    first = scalars.expr(value)[0].inside(LEVEL["+"])
    others = [scalars.expr(node)[0].inside(LEVEL["+"] + 1) for node in operands]
    return "\n".join(["(", f"    {first}", *(f"    + {other}" for other in others), ")"])


def group_leaf(size: str) -> Callable[[Value], Text]:
    """Render an input of an advantage or filter: its parameter."""

    def leaf(value: Value) -> Text:
        if value.op == "siblings":
            return Text("torch.bincount(group)[group]")
        return Text(str(value.attr) if value.op == "input" else size)

    return leaf


PADDED = {"next": "token_next", "scan_back": "scan_back", "seq_sum": "token_sum",
          "seq_count": "token_count", "seq_max": "token_max", "seq_min": "token_min"}  # fmt: skip


def padded(value: Value, args: list[Text], operands: list[Value], owner: str) -> Text:
    """Like `emit.torch.render`, for padded tokens [B, T] with a mask of valid tokens."""
    if value.op == "expand":
        return Text(f"{args[0].inside(ATOM)}[:, None]")
    if value.op in PADDED:
        return Text(f"{PADDED[value.op]}({', '.join(arg.code for arg in args)})")
    return render(value, args, operands, owner)


def summary(function: ir.Function) -> str:
    """Return the first line of a function's doc comment."""
    first = function.doc.splitlines()[:1]
    return first[0] if first else f"{function.kind.capitalize()} `{function.name}`."


def docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''").strip()


def scalar_type(type_: ast.Type) -> str:
    """Return the type that the scalar writer uses for a declared type."""
    name = getattr(type_, "name", "")
    table = {"Rollout": "rollout", "Row": "row", "str": "str", "bool": "bool", "list": "list"}
    return table.get(name, "number" if name in ("int", "float", "f32", "i64") else "any")


def helper_import(names: list[str]) -> list[str]:
    """Return the import of the helpers, wrapped as the formatter does."""
    line = f"from forgedsl_runtime.program import {', '.join(names)}"
    if len(line) <= 100:
        return [line]
    return ["from forgedsl_runtime.program import (", *(f"    {n}," for n in names), ")"]
