"""Builds `Function`s from declarations, and checks the names in their bodies.

A body may use its fields, the names it assigned before, the parameters and functions of its
module, built-in functions and axis names. Anything else is F101 with the nearest names; a call
with the wrong number of arguments is F114.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from forgedsl.diagnostics import Diagnostic, Label, Reporter
from forgedsl.hir.context import Context
from forgedsl.hir.table import part_span
from forgedsl.ir.program import Constant, Decl, Deferred, Function, PythonFunction, Scope
from forgedsl.mistakes.other_tools import equivalent, function_equivalent
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.mistakes.tensor_calls import LIBRARIES, attribute_help, index_help, tensor_call
from forgedsl.records import dataclass
from forgedsl.schema import builtins
from forgedsl.schema.constructors import STANDARD_REWARDS
from forgedsl.syntax import ast
from forgedsl.syntax.walk import chain

AXES = "axes are B (sequences), T (tokens), G (completions of a prompt), P (pairs)"
ENDS = {
    "minimize": "add `minimize EXPRESSION` with the value to minimize, such as `minimize "
    "token_mean(-logprob * adv, mask)`",
    "return": "end the body with `return EXPRESSION`",
}
"""help for a body that lacks its end"""
Statement = ast.Assign | ast.TypedAssign | ast.Return | ast.Minimize | ast.Report


def build_function(decl: ast.FnDecl, scope: Scope, ctx: Context) -> Function:
    """Build the Function of a declaration. A misplaced statement is reported and left out."""
    if isinstance(decl.body, ast.Block):
        statements = _statements(decl, decl.body, ctx)
    else:
        statements = (ast.Return(value=decl.body, span=decl.body.span),)
    return Function(
        kind=decl.kind,
        name=decl.name,
        module=scope.module,
        fields=decl.fields,
        result=decl.result,
        statements=statements,
        scope=scope,
        doc=decl.doc,
        span=decl.span,
    )


def _statements(decl: ast.FnDecl, body: ast.Block, ctx: Context) -> tuple[Statement, ...]:
    kept: list[Statement] = []
    is_loss = decl.kind == "loss"
    for item in body.items:
        match item:
            case ast.Assign() if len(item.path.parts) > 1:
                ctx.error("F119", "a name in a body cannot contain dots", item.path.span)
            case ast.Assign() | ast.TypedAssign():
                kept.append(item)
            case ast.Minimize() | ast.Report() if is_loss:
                kept.append(item)
            case ast.Return() if not is_loss:
                kept.append(item)
            case _:
                word = type(item).__name__.lower()
                message = f"`{word}` cannot stand in a {decl.kind}"
                ctx.error("F119", message, item.span, help=_instead(word, is_loss=is_loss))
    ends = [s for s in kept if isinstance(s, ast.Minimize if is_loss else ast.Return)]
    word = "minimize" if is_loss else "return"
    if not ends and len(kept) == len(body.items):
        message = f"{decl.kind} `{decl.name}` has no `{word}`"
        ctx.error("F110", message, decl.name_span, help=ENDS[word])
    for extra in ends[1:]:
        related = (Label(text="the first one", span=ends[0].span),)
        ctx.error("F102", f"a second `{word}`", extra.span, related=related)
    if not is_loss and ends and kept[-1] is not ends[0]:
        ctx.error("F119", "`return` must be the last statement", kept[-1].span)
    return tuple(kept)


def _instead(word: str, *, is_loss: bool) -> str:
    """Return the help for a statement that belongs to the other kind of function; "" if there is
    none."""
    if is_loss:
        return "a loss must end with `minimize`" if word == "return" else ""
    return "only a loss can use `minimize` and `report`" if word in {"minimize", "report"} else ""


@dataclass(slots=True, kw_only=True)
class BodyChecker:
    """Checks the names of one body. `used` collects the names of the module that it reads."""

    ctx: Context
    scope: Scope
    locals: dict[str, str]  # name -> type name ("Rollout", "" for plain values)
    functions: frozenset[str] = frozenset(builtins.FUNCTIONS)
    used: set[str]
    kind: str = ""
    """the kind of declaration that the body belongs to: a loss, a rubric, ..."""

    def expr(self, expr: ast.Expr) -> None:
        match expr:
            case ast.Path():
                self._path(expr)
            case ast.Index():
                self._index(expr)
            case ast.Call():
                self._call(expr)
            case ast.Unary():
                self.expr(expr.operand)
            case ast.Binary():
                if not self._mean_by_hand(expr):
                    self.expr(expr.left)
                    self.expr(expr.right)
            case ast.Conditional():
                self.expr(expr.then)
                self.expr(expr.test)
                self.expr(expr.otherwise)
            case ast.List():
                for item in expr.items:
                    self.expr(item)

    def _index(self, expr: ast.Index) -> None:
        """Check an index: rows and targets of rewards have indices, tensors do not (they have
        axes)."""
        path, keys = chain(expr)
        self.expr(path)
        for key in keys:
            self.expr(key)
        if self.kind not in {"dataset", "reward", "fn"}:
            help_text = index_help(keys[0].text if isinstance(keys[0], ast.Path) else "")
            self.ctx.error("F119", "values cannot be indexed here", expr.span, help=help_text)

    def _mean_by_hand(self, expr: ast.Binary) -> bool:
        """Report `sum(x * mask) / sum(mask)`, a mean by hand without an axis; True if it is one."""
        sides = (expr.left, expr.right)
        if expr.operator != "/" or self.kind not in {"loss", "fn"}:
            return False
        if not all(isinstance(s, ast.Call) and s.function.text == "sum" for s in sides):
            return False
        if any(len(s.args) != 1 for s in sides):  # type: ignore[union-attr]
            return False
        help_text = "for a mean over the tokens of the step, write `token_mean(x, mask)`"
        self.ctx.error("F114", "`sum` needs an axis", expr.span, help=help_text)
        return True

    def _candidates(self) -> Iterable[str]:
        return (*self.locals, *self.scope.names)

    def _path(self, path: ast.Path) -> None:
        head, rest = path.parts[0], path.parts[1:]
        if head in self.locals:
            self._attribute(path, self.locals[head])
            return
        found = self.scope.names.get(head)
        if found is not None:
            self.used.add(head)
            if isinstance(found, Scope):
                self._member(path, found)
            elif rest and not (isinstance(found, Decl) and found.kind != "reward"):
                self.ctx.error("F101", f"`{head}` has no attributes", part_span(path, 1))
            return
        if head in builtins.AXES and not rest:
            return
        span = part_span(path, 0, 0)
        if head in self.functions:
            self.ctx.error("F119", f"`{head}` is a function; call it", span)
            return
        if len(head) == 1 and head.isupper() and not rest:
            self.ctx.error("F101", f"there is no axis `{head}`", span, help=AXES)
            return
        self.ctx.unknown("F101", "undefined name", head, span, self._candidates(), self._hint(path))

    def _hint(self, path: ast.Path) -> str:
        """Suggest a replacement for a name that resembles no known name."""
        name = path.parts[0]
        if "Row" in self.locals.values():
            return f"to read a column, write `row.{name}`"
        if len(path.parts) > 2:
            return f"a body cannot read settings, only params: `param {path.parts[-1]} : int = ...`"
        if self.kind == "loss" and name in builtins.FIELD_TYPES:
            return f"declare it as a field of the loss: `{name}: {builtins.FIELD_TYPES[name]}`"
        known = [*self.locals]
        if self.kind == "rubric":
            names = self.scope.names.items()
            known = [n for n, found in names if isinstance(found, Decl) and found.kind == "reward"]
        listed = ", ".join(f"`{k}`" for k in known)
        name = "global_step" if name == "step" else name
        return equivalent(name) or (
            f"known names here are {listed}" if 0 < len(known) <= 12 else ""
        )

    def _attribute(self, path: ast.Path, type_name: str) -> None:
        if len(path.parts) == 1 or type_name in {"any", "Row"}:
            return
        name, span = path.parts[1], part_span(path, 1, 1)
        if type_name == "Rollout":
            if name not in builtins.ROLLOUT_ATTRIBUTES:
                what = "a rollout has no attribute"
                self.ctx.unknown("F101", what, name, span, builtins.ROLLOUT_ATTRIBUTES)
            elif name == "rewards" and len(path.parts) != 3:
                message = f"`{path.text}` is not a number, but a record of reward parts"
                self.ctx.error("F109", message, path.span, help=f"`{path.parts[0]}.rewards.NAME`")
        elif name not in {"chosen", "rejected"}:
            sides = ("chosen", "rejected")
            help_text = did_you_mean(nearest(name, sides)) or attribute_help(name, path.parts[0])
            message = f"`{path.parts[0]}` has no attribute `{name}`"
            self.ctx.error("F101", message, span, help=help_text)

    def _member(self, path: ast.Path, scope: Scope) -> None:
        if len(path.parts) == 1:
            message = f"`{path.text}` is a module; name one of its functions"
            self.ctx.error("F109", message, path.span)
        elif scope.names and scope.lookup(path.parts[1:]) is None:  # else its import failed
            deep, inner = 1, scope.names.get(path.parts[1])
            while deep < len(path.parts) - 1 and isinstance(inner, Scope):
                scope, deep = inner, deep + 1
                inner = scope.names.get(path.parts[deep])
            if (help_text := as_reward(path, scope)) is not None:
                self.ctx.error(
                    "F119", f"`{path.text}` is a reward, not a value", path.span, help=help_text
                )
                return
            name, span = path.parts[deep], part_span(path, deep, deep)
            what = f"`{'.'.join(path.parts[:deep])}` has no member"
            self.ctx.unknown("F101", what, name, span, scope.names)
        elif isinstance(scope.lookup(path.parts[1:]), PythonFunction):
            self._python(path)

    def _python(self, path: ast.Path) -> None:
        message = f"`{path.text}` is a Python function, which only a reward can call"
        self.ctx.error("F119", message, path.span, help=f"`reward NAME = {path.text}`")

    def _call(self, call: ast.Call) -> None:
        path = call.function
        found = self.scope.lookup(path.parts)
        if len(path.parts) == 1 and path.text in self.functions and found is None:
            self._arity(call, path.text, builtins.FUNCTIONS[path.text])
        elif isinstance(found, Function):
            self.used.add(path.parts[0])
            names = tuple(f.name + ("" if f.default is None else "?") for f in found.fields)
            self._arity(call, path.text, names)
        elif isinstance(found, PythonFunction):
            self.used.add(path.parts[0])
            self._python(path)
        elif isinstance(found, Constant | Decl) or path.text in self.locals:
            is_reward = isinstance(found, Decl) and found.kind == "reward"
            help_text = f"name the reward without arguments: `{path.text}`" if is_reward else ""
            self.ctx.error("F119", f"`{path.text}` is not a function", path.span, help=help_text)
            return
        elif isinstance(self.scope.names.get(path.parts[0]), Scope) and len(path.parts) > 1:
            self.used.add(path.parts[0])
            self._path(path)
        else:
            functions = [n for n, f in self.scope.names.items() if isinstance(f, Function)]
            known = (*self.functions, *functions)
            self._unknown_function(path, known)
        for arg in call.args:
            self.expr(arg.value)

    def _unknown_function(self, path: ast.Path, known: Iterable[str]) -> None:
        """Report a call of an unknown function, such as `torch.min`, `gain.clamp(0, 1)` or
        `row.answer.split("#")`. The last part of the name decides the help."""
        last = path.parts[-1]
        help_text = tensor_call(path.parts, self.kind)
        if help_text:  # names in its arguments, such as `torch.float32`, are no further mistakes
            self.ctx.missing.update(LIBRARIES - self.locals.keys() - self.scope.names.keys())
        help_text = help_text or function_equivalent(last)
        if not help_text and last in self.functions and len(path.parts) > 1:
            names = builtins.FUNCTIONS[last]
            params = ("a", "b") if last in {"min", "max"} else (p.removesuffix("?") for p in names)
            help_text = f"here it is `{last}({', '.join(params)})`"
        if help_text:
            message = f"undefined function `{path.text}`"
            self.ctx.error("F101", message, path.span, help=help_text)
        else:
            self.ctx.unknown("F101", "undefined function", path.text, path.span, known)

    def _arity(self, call: ast.Call, name: str, params: tuple[str, ...]) -> None:
        if name == "record":
            self._fields(call)
            return
        variadic = params[-1:] == ("...",)
        names = [p.removesuffix("?") for p in params if p != "..."]
        needed = [p for p in params if p in names]
        least, given = len(needed), len(call.args)
        for arg in call.args:
            if arg.name is not None and arg.name not in names:
                span = part_span(ast.Path(parts=(arg.name,), span=arg.span), 0)
                span = type(span)(span.file, arg.span.start, arg.span.start + len(arg.name))
                self.ctx.unknown("F114", f"`{name}` has no parameter", arg.name, span, names)
                return
        if given == 1 and name in builtins.REDUCTIONS and names[1] == "axis":
            self.ctx.error("F114", f"`{name}` needs an axis", call.span, help=self._axis_help(name))
        elif not least <= given <= (given if variadic else len(names)):
            wanted = str(len(names)) if least == len(names) else f"{least} to {len(names)}"
            plural = "" if wanted == "1" else "s"
            message = f"`{name}` takes {wanted} argument{plural}, not {given}"
            shown = f"{name}({', '.join(names)})"
            self.ctx.error("F114", message, call.span, help=f"`{shown}`")
        else:
            by_name = {arg.name for arg in call.args}
            first = names[: sum(arg.name is None for arg in call.args)]
            if missing := [p for p in needed if p not in first and p not in by_name]:
                self.ctx.error("F114", f"`{name}` needs its `{missing[0]}`", call.span)

    def _fields(self, call: ast.Call) -> None:
        """Check that every field of a record has a name, and no two the same one."""
        seen: set[str | None] = set()
        for arg in call.args:
            if arg.name is None or arg.name in seen:
                what = "has no name" if arg.name is None else f"`{arg.name}` is given twice"
                help_text = "`record(question = row.question, tests = row.meta.tests)`"
                self.ctx.error("F114", f"a field of this record {what}", arg.span, help=help_text)
            seen.add(arg.name)

    def _axis_help(self, name: str) -> str:
        """Return the forms of a reduction that this kind of body can use, as help."""
        if self.kind in {"advantage", "filter"}:
            return f"to reduce over the completions of a group, write `{name}(x, G)`"
        step = {"mean": "`token_mean(x, mask)`", "sum": "`seq_sum(x, mask)`"}.get(name, "")
        within = f"write `{name}(x, T, mask)` to reduce each sequence"
        return within + (f", {step} to reduce over the whole step" if step else "")


Checked = dict[tuple[str, int, str], tuple[set[str], tuple[Diagnostic, ...]]]
"""results of `check_function`, by file, offset and name of the function"""


def check_function(
    function: Function, ctx: Context, known: Checked, broken: Collection[str] = ()
) -> set[str]:
    """Check the names of a body; return the names of its module that it uses. Profiles change
    values but not names, so a result in `known` from one profile holds for all. `broken` are
    parameters whose values have been reported."""
    key = (function.span.file, function.span.start, function.name)
    if key not in known:
        problems = Reporter()
        names = _check_names(function, Context(problems, broken=set(broken)))
        known[key] = names, tuple(problems)
    used, diagnostics = known[key]
    for diagnostic in diagnostics:
        ctx.reporter.report(diagnostic)
    return used


def _check_names(function: Function, ctx: Context) -> set[str]:
    checker = BodyChecker(ctx=ctx, scope=function.scope, locals={}, used=set(), kind=function.kind)
    first = function.fields[0] if function.fields else None
    if function.kind in ("advantage", "filter") and not isinstance(
        first and first.type, ast.TensorType
    ):
        article = "an advantage" if function.kind == "advantage" else "a filter"
        span = first.type.span if first is not None else function.span
        help_text = f"`{first.name if first is not None else 'score'}: [G] f32`"
        message = (
            f"the first parameter of {article} must be a tensor with one entry per "
            "completion of a prompt"
        )
        ctx.error("F114", message, span, help=help_text)
    for field in function.fields:
        if field.name in checker.locals:
            message = f"`{field.name}` is declared twice"
            ctx.error("F102", message, field.name_span)
        check_type(field.type, ctx)
        if field.default is not None:
            checker.expr(field.default)
        is_named = isinstance(field.type, ast.NamedType)
        checker.locals[field.name] = field.type.name if is_named else ""  # type: ignore[union-attr]
    if function.result is not None:
        check_type(function.result, ctx)
    for statement in function.statements:
        checker.expr(statement.value)
        if isinstance(statement, ast.Assign):
            _bind(checker, statement.path.text, statement.path)
        elif isinstance(statement, ast.TypedAssign):
            _bind(checker, statement.name, statement)
    return checker.used


def check_deferred(value: Deferred, kind: str, ctx: Context, used: set[str]) -> None:
    """Check the names of an expression that is evaluated per row or per rollout."""
    rows = kind == "dataset"
    checker = BodyChecker(
        ctx=ctx,
        scope=value.scope,
        locals={"row": "Row"} if rows else {},
        functions=builtins.TEXT_FUNCTIONS
        if rows
        else frozenset(builtins.ELEMENTWISE) | {"min", "max"},
        used=used,
        kind=kind,
    )
    checker.expr(value.expr)


def call_help(path: ast.Path, function: Function, before: str = "") -> str:
    """Return the help for a function named without its arguments: the call."""
    takes = [field.name for field in function.fields if field.default is None]
    if function.kind in ("advantage", "filter"):
        takes[:1] = ["score"]
    return f"call it: `{before}{path.text}({', '.join(takes)})`"


def _bind(checker: BodyChecker, name: str, node: ast.Node) -> None:
    if name in checker.locals:
        message = f"`{name}` is assigned twice"
        checker.ctx.error("F102", message, node.span, help="give the new value another name")
    checker.locals[name] = ""


_TYPES = (*builtins.PARAM_TYPES, *builtins.DTYPES, "Rollout", "Row", "i32")


def check_type(type_: ast.Type, ctx: Context) -> None:
    """Check that type names and dtypes exist."""
    match type_:
        case ast.NamedType():
            if type_.name not in _TYPES:
                ctx.unknown("F101", "unknown type", type_.name, type_.span, _TYPES)
        case ast.GenericType():
            if type_.name != "list":
                span = type(type_.span)(
                    type_.span.file, type_.span.start, type_.span.start + len(type_.name)
                )
                ctx.unknown("F101", "unknown type", type_.name, span, ("list",))
            for arg in type_.args:
                check_type(arg, ctx)
        case ast.TensorType():
            for axis in type_.axes:
                if not isinstance(axis, ast.Path) or axis.text not in builtins.AXES:
                    ctx.error("F101", "this is not an axis", axis.span, help=AXES)
            if type_.dtype not in builtins.DTYPES:
                end = type_.span.end
                span = type(type_.span)(type_.span.file, end - len(type_.dtype), end)
                ctx.unknown("F101", "unknown dtype", type_.dtype, span, builtins.DTYPES)


def as_reward(path: ast.Path, module: Scope) -> str | None:
    """Return the help for a standard reward used where a value or a function of `module` is
    expected."""
    if not module.module.startswith("std/") or path.parts[-1] not in STANDARD_REWARDS:
        return None
    return f"declare it with `reward correct = {path.text}`, and write `correct` here"
