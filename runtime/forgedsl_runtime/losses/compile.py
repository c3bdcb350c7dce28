"""`compile_loss`: from .forge text, a file, or a standard name to a LossFunction.

Example:
    loss = forgedsl.compile_loss("my_losses.forge", "clipped", params={"eps": 0.3})
    out = loss(logits=logits, labels=labels, mask=mask, behavior=behavior, adv=adv)
    out.backward()
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forgedsl.api import load_functions
from forgedsl.diagnostics import Diagnostic, Reporter, Severity
from forgedsl.errors import PipelineError, SourceError, expect
from forgedsl.hir.modules import standard_modules
from forgedsl.ir.program import Function
from forgedsl.lower.loss import lower_loss
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.report.findings import error_of
from forgedsl.source import NO_SPAN, SourceFile
from forgedsl.syntax import ast, parse
from forgedsl_runtime.losses.function import LossFunction

BACKENDS = ("auto", "torch", "triton")


def compile_loss(
    source: str | Path,
    name: str | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    backend: str = "auto",
) -> LossFunction:
    """Compile the loss `name` of `source`: .forge text, a path to it, or the name of a standard
    loss.

    `params` sets parameters of the loss and `param`s of the file. Without `name` the source must
    declare exactly one loss. `backend` is "torch", "triton", or "auto": kernels on a GPU, torch on
    a CPU. "triton" never falls back.

    Raises:
        PipelineError: the source has mistakes, or no such loss; `diagnostics` holds them. Or it is
            the path of a missing file.
        TypeError: an argument has the wrong type.
        ValueError: there is no such backend.
    """
    expect(
        source,
        str | Path,
        "the loss must be a name of the library, .forge text, or a path",
    )
    expect(
        name,
        str | None,
        "`name` must be the name of a loss of the source; give its parameters with params=",
    )
    example = 'params={"clip_high": 0.3}'
    expect(params, Mapping | None, f"`params` must map names to values, {example}")
    for key, value in (params or {}).items():
        expect(key, str, f"`params` must map names to values, {example}")
        expect(value, bool | int | float | str, f"the parameter `{key}` takes one value")
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
    try:
        return _compile(source, name, tuple(sorted((params or {}).items())), backend)
    except PipelineError:
        raise
    except SourceError as error:
        raise _for_people(error) from None


def _for_people(error: SourceError) -> PipelineError:
    """The same mistakes as `forgec lint` shows them, or in one line if they have no place."""
    if any(found.span.file in error.sources for found in error.diagnostics):
        return error_of(error.diagnostics, error.sources)
    said = ("; ".join(filter(None, (each.message, each.help))) for each in error.diagnostics)
    return PipelineError("\n".join(said), error.diagnostics)


@functools.cache
def _compile(
    source: str | Path, name: str | None, params: tuple[tuple[str, Any], ...], backend: str
) -> LossFunction:
    own = _file_params(source)
    functions, sources = load_functions(source, params={k: v for k, v in params if k in own})
    standard = isinstance(source, str) and source.isidentifier()
    function = _choose(functions, str(source) if standard else name)
    _check_params(function, own, (key for key, _ in params))
    reporter = Reporter()
    given = {key: value for key, value in params if key not in own}
    lowered = lower_loss(function, reporter, sources, given)
    if lowered is None:
        raise SourceError(tuple(d for d in reporter if d.severity is Severity.ERROR), sources)
    return LossFunction(lowered, backend)


def _file_params(source: str | Path) -> frozenset[str]:
    """Return the `param`s that the source declares; `load_functions` reports its mistakes."""
    text = str(source)
    if isinstance(source, Path) or (text.endswith(".forge") and "\n" not in text):
        if not Path(source).is_file():
            raise PipelineError(f"no such file: {text}")
        text = Path(source).read_text("utf-8")
    elif text.isidentifier():
        return frozenset()
    elif text not in standard_modules() and re.fullmatch(r"[^\s{]+", text):
        modules = ", ".join(standard_modules())
        raise PipelineError(
            f"{text} is neither a .forge file nor a module of the library ({modules})"
        )
    file = parse(SourceFile(str(source), text), Reporter())
    return frozenset(decl.name for decl in file.decls if isinstance(decl, ast.Param))


def _choose(functions: Mapping[str, Function], name: str | None) -> Function:
    """Return the loss called `name`, or the only one."""
    losses = {key: found for key, found in functions.items() if found.kind == "loss"}
    if name is None and len(losses) == 1:
        return next(iter(losses.values()))
    # If an advantage has the plain name, the loss is NAME_loss.
    found = losses.get(name or "") or losses.get(f"{name}_loss")
    if found is not None:
        return found
    listed = sorted(key.removesuffix("_loss") for key in losses)
    if name is None:
        message = f"the source declares {len(losses)} losses ({', '.join(listed) or 'none'})"
        help_ = "give the name of one" if losses else "declare one: `loss name(...) { ... }`"
    else:
        message = f"there is no loss `{name}`"
        help_ = did_you_mean(nearest(name, listed)) or f"the losses are {', '.join(listed)}"
    raise _mistake("F101", "undefined", message, help_)


def _check_params(function: Function, own: frozenset[str], given: Iterable[str]) -> None:
    """Check that every given parameter belongs to the loss or its file."""
    known = [f.name for f in function.fields if not isinstance(f.type, ast.TensorType)]
    known += sorted(own)
    for name in given:
        if name not in known:
            listed = f"the parameters are {', '.join(known)}" if known else "it has none"
            help_ = did_you_mean(nearest(name, known)) or listed
            raise _mistake("F114", "arity", f"`{function.name}` has no parameter `{name}`", help_)


def _mistake(code: str, name: str, message: str, help_: str) -> SourceError:
    severity = Severity.ERROR
    return SourceError(
        (Diagnostic(code=code, name=name, severity=severity, message=message, span=NO_SPAN,
                    help=help_),)
    )  # fmt: skip
