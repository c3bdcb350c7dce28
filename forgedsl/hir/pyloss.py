"""Losses in Python: `loss hand(logprob: diff [B, T] f32, ...) = mine.Clip(eps = 0.2)`.

The fields are declared like those of any loss. `forward` of the `nn.Module` takes them by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.hir.context import ERROR
from forgedsl.hir.environments import signature_of
from forgedsl.hir.file import File
from forgedsl.hir.rewards import plain_value
from forgedsl.hir.table import part_span
from forgedsl.ir.program import Function, PythonModule, Scope
from forgedsl.records import replace
from forgedsl.schema.reports import wrong_report
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.tensors import axes_of

MORE = ("seq_id", "num_tokens", "num_sequences")
"""arguments that `forward` can take besides the fields: sequence ids of tokens, counts of the
step"""


def is_python(resolver: File, decl: ast.FnDecl) -> bool:
    """True if the body of a loss is a name imported from a Python file."""
    if decl.kind != "loss" or isinstance(decl.body, ast.Block):
        return False
    path = _path(decl.body)
    module = None if path is None else resolver.scope.names.get(path.parts[0])
    return isinstance(module, Scope) and module.module.endswith(".py")


def python_loss(resolver: File, decl: ast.FnDecl) -> Function | None:
    """Resolve a loss to its Python class and arguments; None after reporting mistakes."""
    ctx, body = resolver.ctx, decl.body
    path = _path(body)
    assert path is not None
    assert not isinstance(body, ast.Block)
    resolver.used.add(path.parts[0])
    found = resolver.scope.lookup(path.parts)
    if not isinstance(found, PythonModule):
        _not_found(resolver, path)
        ctx.broken.add(decl.name)
        return None
    problems = list(_problems(decl, found))
    for message, span, help_text in problems:
        ctx.error("X802", message, span, help=help_text)
    args = body.args if isinstance(body, ast.Call) else ()
    bound = resolver.coercer.bind(signature_of(found), args, body.span, resolver.scope)
    if bound is ERROR or problems:
        ctx.broken.add(decl.name)
        return None
    order = [param.name for param in found.init if not param.keyword]
    given = {arg.name or order[index] for index, arg in enumerate(args)}
    return Function(
        kind="loss",
        name=decl.name,
        module=resolver.scope.module,
        fields=decl.fields,
        result=decl.result,
        statements=(),
        python=replace(found, args={n: plain_value(bound[n]) for n in bound if n in given}),
        scope=resolver.scope,
        doc=decl.doc,
        span=decl.span,
    )


def _path(body: ast.Expr | ast.Block) -> ast.Path | None:
    """Return the name that the body calls, or that it consists of."""
    path = body.function if isinstance(body, ast.Call) else body
    return path if isinstance(path, ast.Path) else None


def _problems(decl: ast.FnDecl, found: PythonModule) -> Iterator[tuple[str, Span, str]]:
    """Yield the reasons why the class cannot be called with the fields: message, span, help."""
    where = decl.body.span
    taken = {param.name for param in found.forward}
    declared = {field.name for field in decl.fields}
    for field in decl.fields:
        if not isinstance(field.type, ast.TensorType):
            message = (
                f"`{field.name}` is a number, which a Python loss takes as argument of its class"
            )
            yield message, field.span, f"write `{found.name}({field.name} = ...)`"
        elif field.name == "value":
            message = "a Python loss cannot read `value` of a value head"
            yield message, field.span, "write this loss in the language, as `rl.value_loss` is"
        elif "P" in (axes_of(field.type) or ()):
            message = "a Python loss cannot read pairs"
            yield message, field.span, "write this loss in the language, as `rl.dpo` is"
        elif field.name not in taken and not found.any_name:
            message = f"`forward` of `{found.name}` has no parameter `{field.name}`"
            yield message, field.span, f"it has {', '.join(f'`{name}`' for name in sorted(taken))}"
    for param in found.forward:
        if param.required and param.name not in {*declared, *MORE}:
            message = f"`forward` of `{found.name}` needs `{param.name}`, which is not declared"
            yield message, where, f"`loss {decl.name}(..., {param.name}: [B, T] f32)`"
    for number, name in enumerate(found.reports):
        if message := wrong_report(name, found.reports[:number], found.reports):
            yield (
                f"{message}; it is listed in `reports` of `{found.name}`",
                where,
                "rename it there",
            )
    if "logprob" not in declared and "entropy" not in declared:
        yield "the loss reads no field with a gradient", where, "`logprob: diff [B, T] f32`"


def _not_found(resolver: File, path: ast.Path) -> None:
    module = resolver.scope.names[path.parts[0]]
    assert isinstance(module, Scope)
    known = [n for n, each in module.names.items() if isinstance(each, PythonModule)]
    help_text = "a Python loss must be a subclass of `torch.nn.Module` with a method `forward`" + (
        f"; known are {', '.join(f'`{n}`' for n in sorted(known)[:12])}" if known else ""
    )
    name = ".".join(path.parts[1:])
    span = part_span(path, 1) if name else path.span
    what = f"`{path.parts[0]}` has no such class"
    resolver.ctx.unknown("X801", what, name or path.parts[0], span, known, help_text)
