"""`compile_loss`: from .forge text, a file, or a standard name to a LossFunction.

Example:
    loss = forgedsl.compile_loss("dapo", params={"clip_high": 0.3})
    out = loss(logits=logits, labels=labels, mask=mask, behavior=behavior, adv=adv)
    out.loss.backward()
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Reporter, Severity
from forgedsl.emit.loss import lower_loss
from forgedsl.errors import SourceError
from forgedsl.hir.context import Context
from forgedsl.hir.instantiate import instantiate
from forgedsl.hir.ir import Function, Origin, Scope
from forgedsl.hir.modules import Loader, Module
from forgedsl.hir.table import Entry
from forgedsl.runtime.losses.function import LossFunction
from forgedsl.source import NO_SPAN, SourceFile
from forgedsl.syntax import ast, parse, parse_value, read_source

STANDARD = "std/rl"
BACKENDS = ("auto", "torch", "triton")


def compile_loss(
    source: str | Path,
    name: str | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    backend: str = "auto",
) -> LossFunction:
    """The loss `name` of `source`: .forge text, a path to it, or the name of a standard loss.

    `params` sets parameters of the loss and `param`s of the file. Without `name` the source must
    declare exactly one loss. `backend` is "torch" or "triton" ("auto" picks one that can run).

    Raises:
        SourceError: the source has mistakes; `diagnostics` holds them.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")
    if backend == "triton":
        raise NotImplementedError(
            "the Triton back end is not built yet; backend='torch' runs on CPU and GPU"
        )
    given = tuple(sorted((params or {}).items()))
    return _compile(str(source) if isinstance(source, Path) else source, name, given)


@functools.cache
def _compile(source: str, name: str | None, params: tuple[tuple[str, Any], ...]) -> LossFunction:
    reporter = Reporter()
    loader = Loader(reporter)
    values = dict(params)
    if source.isidentifier():
        module, name = loader.standard(STANDARD), source
    else:
        module = _read(source, loader)
    scope = _scope(module, values, loader)
    function = _choose(scope, name, module.name)
    declared = {field.name for field in function.fields}
    used = {key: value for key, value in values.items() if key in declared}
    unknown = values.keys() - declared - _params(module)
    if unknown:
        known = ", ".join(sorted(_params(module) | {f for f in declared if _scalar(function, f)}))
        raise TypeError(
            f"loss {function.name} has no parameter {', '.join(sorted(unknown))}; "
            f"its parameters are {known or 'none'}"
        )
    lowered = None
    if not reporter.has_errors:
        lowered = lower_loss(function, reporter, loader.sources, used)
    if lowered is None:
        raise SourceError(tuple(d for d in reporter if d.severity is Severity.ERROR))
    return LossFunction(lowered)


def _read(source: str, loader: Loader) -> Module:
    """Parse a path (a name without line breaks) or a text."""
    is_path = "\n" not in source and "{" not in source
    if is_path:
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(
                f"no file {source!r}, and no .forge text: a text declares `loss name(...) {{ ... }}`"
            )
        read = read_source(path, source, loader.reporter)
    else:
        read = SourceFile("<text>", source)
    if read is None:
        raise SourceError(tuple(loader.reporter))
    loader.sources[read.name] = read
    tree = parse(read, loader.reporter)
    if loader.reporter.has_errors:
        raise SourceError(tuple(loader.reporter))
    folder = Path(source).parent if is_path else None
    return Module(name="", file=tree, folder=folder, is_standard=False)


def _scope(module: Module, params: Mapping[str, Any], loader: Loader) -> Scope:
    """The names of the module, its `param`s set from `params`."""
    origin = Origin(layer="set", detail="params", span=None)
    arguments = {}
    for name in _params(module) & params.keys():
        value = parse_value(SourceFile("params", literal(params[name])), loader.reporter)
        if value is not None:
            arguments[name] = Entry(expr=value, origin=origin, path_span=NO_SPAN)
    ctx = Context(loader.reporter)
    scope = instantiate(module, arguments, _NoNames(ctx), loader, ctx)
    if loader.reporter.has_errors:
        raise SourceError(tuple(loader.reporter))
    return scope


class _NoNames:
    """Values from outside are literals and name nothing."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def value_of(self, path: ast.Path) -> Any:
        return self.ctx.error("F101", f"undefined name `{path.text}`", path.span)


def literal(value: Any) -> str:
    """A Python value as .forge text."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _params(module: Module) -> set[str]:
    return {decl.name for decl in module.file.decls if isinstance(decl, ast.Param)}


def _scalar(function: Function, field: str) -> bool:
    return any(
        f.name == field and not isinstance(f.type, ast.TensorType) for f in function.fields
    )


def _choose(scope: Scope, name: str | None, module: str) -> Function:
    """The loss called `name`, or the only one."""
    losses = {
        key: found
        for key, found in scope.names.items()
        if isinstance(found, Function) and found.kind == "loss"
    }
    if name is None and len(losses) == 1:
        return next(iter(losses.values()))
    # the advantage `rloo` has the plain name
    found = losses.get(name or "") or losses.get(f"{name}_loss")
    if found is not None:
        return found
    listed = ", ".join(sorted(key.removesuffix("_loss") for key in losses)) or "none"
    where = f"the standard library {module}" if module else "this source"
    if name is None:
        raise TypeError(f"{where} declares {len(losses)} losses: name one of {listed}")
    message = f"no loss `{name}` in {where}; its losses are {listed}"
    problem = Diagnostic(
        code="F101", name="undefined", severity=Severity.ERROR, message=message, span=NO_SPAN
    )
    raise SourceError((problem,))
