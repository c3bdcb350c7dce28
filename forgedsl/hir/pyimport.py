"""Finds the callables of `import python "x.py" as x` by reading its source. It is never executed.

Callables are functions, classes with `__call__` (the reward's arguments are those of `__init__`),
objects of such classes, and the environments and `nn.Module`s of `hir.pyclass`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.hir.context import Context
from forgedsl.hir.pyclass import environments, modules
from forgedsl.ir.program import PythonFunction, PythonParameter, Scope
from forgedsl.mistakes.suggest import as_written, did_you_mean, nearest
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast

if TYPE_CHECKING:
    import ast as python


@lru_cache(maxsize=256)  # the same for all profiles and rules
def parsed(text: str) -> python.Module:
    """Return the tree of a Python text. It is cached and shared, so callers must not change it.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is not valid.
    """
    import ast as python

    return python.parse(text)


def python_text(target: str, span: Span, folder: Path | None, ctx: Context) -> str | None:
    """Return the text of a Python file that is named relative to `folder`; None after reporting
    that it cannot be read or parsed."""
    path = Path(target)
    if path.is_absolute():
        ctx.error("F115", "write the path of the Python file relative to the .forge file", span)
        return None
    if folder is None:
        message = f"cannot import `{target}`: this .forge text has no file and no folder"
        ctx.error("F115", message, span)
        return None
    try:
        text = (folder / path).read_text("utf-8")
        parsed(text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        beside = [file.name for file in (folder / path).parent.glob("*.py")]
        close = did_you_mean(as_written(target, nearest(path.name, beside)))
        ctx.error("F115", f"cannot read `{target}`: {reason}", span, help=close)
        return None
    except UnicodeDecodeError:
        ctx.error("F115", f"`{target}` is not UTF-8", span, help="save it in UTF-8")
        return None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" (line {error.lineno}: {error.msg})" if isinstance(error, SyntaxError) else ""
        ctx.error("F115", f"`{target}` is not valid Python{where}", span)
        return None
    return text


def python_scope(
    decl: ast.ImportPython, folder: Path | None, ctx: Context, rebase: Callable[[str], str]
) -> Scope | None:
    """Return the scope of a Python file: its rewards, environments and losses. `rebase` makes the
    path relative to the program's folder."""
    import ast as python

    text = python_text(decl.target, decl.target_span, folder, ctx)
    if text is None:
        return None
    tree = parsed(text)
    scope = Scope(module=decl.target)
    scope.others.update(_others(tree))
    scope.names.update(environments(tree, rebase(decl.target), decl.span))
    scope.names.update(modules(tree, rebase(decl.target), text, decl.span))
    for name, found in callables(tree).items():
        arguments = found.definition.args
        scope.names[name] = PythonFunction(
            module=rebase(decl.target),
            name=name,
            makes=found.makes,
            params=_parameters(found.definition, bound=found.makes != "call"),
            init=_parameters(found.init, bound=True) if found.init is not None else (),
            any_number=arguments.vararg is not None,
            any_name=arguments.kwarg is not None,
            asynchronous=isinstance(found.definition, python.AsyncFunctionDef),
            span=decl.span,
        )
    return scope


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCallable:
    """A callable. `makes` is call, class or object. `definition` is the function that runs in a
    call, `init` the `__init__` of a class, and `top` the top-level definition that contains
    them."""

    makes: str
    top: str
    definition: python.FunctionDef | python.AsyncFunctionDef
    init: python.FunctionDef | None = None


def callables(tree: python.Module) -> dict[str, PythonCallable]:
    """Return the callables that can be rewards, by name."""
    import ast as python

    found: dict[str, PythonCallable] = {}
    classes = {node.name: node for node in tree.body if isinstance(node, python.ClassDef)}
    for node in tree.body:
        match node:
            case python.FunctionDef() | python.AsyncFunctionDef():
                found[node.name] = PythonCallable(makes="call", top=node.name, definition=node)
            case python.ClassDef():
                methods = _methods(node, classes)
                call, init = methods.get("__call__"), methods.get("__init__")
                if call is not None:
                    found[node.name] = PythonCallable(
                        makes="class",
                        top=node.name,
                        definition=call,
                        init=init if isinstance(init, python.FunctionDef) else None,
                    )
            case python.Assign(
                targets=[python.Name(id=name)], value=python.Call(func=python.Name(id=made))
            ) if made in found and found[made].makes == "class":
                one = found[made]
                found[name] = PythonCallable(makes="object", top=made, definition=one.definition)
    return found


def _others(tree: python.Module) -> Iterator[tuple[str, str]]:
    """Return the other names of a file, each with the reason why it cannot be a reward."""
    import ast as python

    for node in tree.body:
        match node:
            case python.ClassDef():
                yield node.name, "a class without `__call__`"
            case python.Import() | python.ImportFrom():
                for alias in node.names:
                    name = alias.asname or alias.name
                    yield name, f"imported: write `def reward(...): return {name}(...)`"
            case python.Assign(targets=[python.Name(id=name)], value=value):
                what = "a lambda" if isinstance(value, python.Lambda) else "a value"
                yield name, f"{what}: a reward must be a `def`, or a class with `__call__`"


def _methods(
    node: python.ClassDef, classes: dict[str, python.ClassDef], depth: int = 0
) -> dict[str, python.FunctionDef | python.AsyncFunctionDef]:
    """Return the methods of a class and of its bases in the same file."""
    import ast as python

    found: dict[str, python.FunctionDef | python.AsyncFunctionDef] = {}
    for base in reversed(node.bases):
        if isinstance(base, python.Name) and base.id in classes and depth < len(classes):
            found |= _methods(classes[base.id], classes, depth + 1)
    mine = (n for n in node.body if isinstance(n, python.FunctionDef | python.AsyncFunctionDef))
    return found | {n.name: n for n in mine}


def _parameters(
    definition: python.FunctionDef | python.AsyncFunctionDef, *, bound: bool
) -> tuple[PythonParameter, ...]:
    """Return the parameters that a caller passes; for a method, without `self`."""
    return tuple(_each(definition.args))[1 if bound else 0 :]


def _each(arguments: python.arguments) -> Iterator[PythonParameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for index, argument in enumerate(positional):
        yield PythonParameter(
            name=argument.arg,
            required=index < required,
            by_position=index < len(arguments.posonlyargs),
        )
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield PythonParameter(name=argument.arg, required=default is None, keyword=True)
