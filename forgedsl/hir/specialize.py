"""Resolves losses by name, and specializes them: `rl.dapo(clip_low = 0.1)`."""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.hir import imports
from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import evaluate, type_name
from forgedsl.hir.file import File
from forgedsl.ir.program import Function, Scope
from forgedsl.mistakes.suggest import did_you_mean
from forgedsl.records import replace
from forgedsl.schema.builtins import PARAM_TYPES
from forgedsl.source import Span
from forgedsl.syntax import ast


def specialize(function: Function, call: ast.Call, name: str, resolver: File) -> Function | None:
    """Return `function` with the arguments of `call` as defaults of its scalar parameters."""
    fields = {field.name: field for field in function.fields}
    types = {f.name: f.type.name for f in function.fields if isinstance(f.type, ast.NamedType)}
    scalars = [*types]
    good = True
    for arg in call.args:
        if arg.name is None:
            help_text = f"`{call.function.text}({scalars[0] if scalars else 'name'} = ...)`"
            message = "give the parameters of a loss by name"
            resolver.ctx.error("F114", message, arg.span, help=help_text)
            good = False
            continue
        span = Span(arg.span.file, arg.span.start, arg.span.start + len(arg.name))
        if arg.name not in scalars:
            what = f"`{call.function.text}` has no parameter"
            resolver.ctx.unknown("F114", what, arg.name, span, scalars)
            good = False
            continue
        value = evaluate(arg.value, resolver, resolver.ctx)
        if value is ERROR:
            good = False
            continue
        default = constant(value, arg.value.span)
        quoted = isinstance(value, str) and types[arg.name] != "str"
        if default is None or quoted:
            message = f"`{arg.name}` is a scalar, not {type_name(value)}"
            help_text = f"without quotes: `{value}`" if quoted and value[:1].isdigit() else ""
            resolver.ctx.error("F109", message, arg.value.span, help=help_text)
            good = False
            continue
        fields[arg.name] = replace(fields[arg.name], default=default)
    return replace(function, name=name, fields=tuple(fields.values())) if good else None


def bound(decl: ast.BindDecl, resolver: File) -> Function | None:
    """Resolve `loss grpo = rl.grpo(beta = 0.0)`: an imported function under another name."""
    path = decl.value.function if isinstance(decl.value, ast.Call) else decl.value
    if isinstance(path, ast.Path):
        found = resolver.scope.lookup(path.parts)
        resolver.used.add(path.parts[0])
        if isinstance(found, Function) and found.kind == decl.kind:
            if isinstance(decl.value, ast.Call):
                return specialize(found, decl.value, decl.name, resolver)
            return found
        if found is None and path.parts[0] in resolver.modules:
            imports.unknown_member(resolver, path)
            return None
    kind = f"{'an' if decl.kind == 'advantage' else 'a'} {decl.kind}"
    message = f"{kind} needs either the name of another one as its value, or parameters and a body"
    resolver.ctx.error("F109", message, decl.value.span)
    resolver.ctx.broken.add(decl.name)
    return None


def constant(value: object, span: Span) -> ast.Expr | None:
    """Convert a folded scalar to an expression; None for anything else."""
    match value:
        case None:
            return ast.NoneLiteral(span=span)
        case bool():
            return ast.Bool(value=value, span=span)
        case int():
            return ast.Integer(value=value, span=span)
        case float():
            return ast.Number(value=float(value), text=repr(float(value)), span=span)
        case str():
            return ast.String(value=value, span=span)
    return None


def resolve_loss(expr: ast.Expr, resolver: File, functions: dict[str, Function]) -> str | None:
    """Return the name of the loss in `functions`. `rl.dapo(clip_low = 0.1)` adds a specialized
    one."""
    path = expr.function if isinstance(expr, ast.Call) else expr
    if not isinstance(path, ast.Path):
        named = path.value if isinstance(path, ast.String) else ""
        meant = did_you_mean(_called(named, losses_in(resolver.scope)))
        if isinstance(expr, ast.Binary):
            meant = "write a weight inside the loss: `minimize 0.05 * token_mean(-logprob, mask)`"
        elif isinstance(expr, ast.List):
            meant = "give each loss after its batch: `trainer.step(a, loss = x, b, loss = y)`"
        resolver.ctx.error("F109", "a loss must be given by its name", expr.span, help=meant)
        return None
    found = resolver.scope.lookup(path.parts)
    if isinstance(found, Function) and found.kind == "loss":
        resolver.used.add(path.parts[0])
        if isinstance(expr, ast.Call):
            found = specialize(found, expr, found.name, resolver)
        if found is not None:
            functions[path.text] = found
            _check_given(found, path, expr.span, resolver)
        return path.text
    if isinstance(found, Function):
        resolver.ctx.error("F109", f"`{path.text}` is a {found.kind}, not a loss", path.span)
        return None
    losses = losses_in(resolver.scope)
    if inside := [name for name in losses if name.startswith(f"{path.text}.")]:
        message = f"`{path.text}` is a module, not a loss"
        resolver.ctx.error("F109", message, path.span, help=f"name a loss of it: `{inside[0]}`")
        return None
    same = _called(path.parts[-1], losses)
    resolver.ctx.unknown(
        "F101", "there is no loss", path.text, path.span, () if same else losses,
        did_you_mean(same),
    )  # fmt: skip
    return None


def losses_in(scope: Scope) -> list[str]:
    """Return the losses that can be named here, those of direct and indirect imports included."""
    found = []
    for name, value in scope.names.items():
        if isinstance(value, Scope):
            found += [f"{name}.{inner}" for inner in losses_in(value)]
        elif isinstance(value, Function) and value.kind == "loss":
            found.append(name)
    return found


def _called(name: str, losses: Sequence[str]) -> tuple[str, ...]:
    """Return the losses whose last part is `name`, the least nested first."""
    same = (loss for loss in losses if loss.rpartition(".")[2] == name)
    return tuple(sorted(same, key=lambda loss: loss.count(".")))[:4]


def _check_given(loss: Function, path: ast.Path, span: Span, resolver: File) -> None:
    """Report scalar parameters that have no value where the loss is used."""
    named = [(f, f.type.name) for f in loss.fields if isinstance(f.type, ast.NamedType)]
    scalars = [f for f, type_name in named if type_name in PARAM_TYPES]
    missing = [f.name for f in scalars if f.default is None]
    if missing:
        listed = " and ".join(f"`{name}`" for name in missing)
        given = ", ".join(f"{name} = ..." for name in missing)
        help_text = f"`loss = {path.text}({given})`"
        resolver.ctx.error("F114", f"loss `{path.text}` needs {listed}", span, help=help_text)
