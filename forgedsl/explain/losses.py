"""A loss, advantage or filter by name -> its page: documentation, parameters, mathematics.

The name is looked up in the file, if there is one, and in the standard library.
"""

from collections.abc import Sequence
from pathlib import Path

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.errors import SourceError
from forgedsl.hir.modules import standard_modules
from forgedsl.ir.program import Function
from forgedsl.losses.infer import infer
from forgedsl.losses.render_math import render
from forgedsl.syntax import ast


def find(
    name: str,
    file: Path | None,
    profile: str,
    overrides: Sequence[str],
    set_files: Sequence[Path] = (),
) -> Function | None:
    """Return the function `name` of the file, else of the standard library."""
    if file is not None:
        program = api.load(file, profile=profile, overrides=overrides, set_files=set_files).program
        if program is not None and name in program.functions:
            return program.functions[name]
    short = name.removeprefix("rl.")
    for module in standard_modules():
        functions, _ = api.load_functions(module)
        if short in functions:
            return functions[short]
    return None


def page(function: Function) -> str:
    """Return the page for the terminal. Raises SourceError if the loss has errors."""
    lines = [f"{function.kind} {function.name}"]
    lines += [f"  {line}" for line in function.doc.splitlines()]
    scalars = [f for f in function.fields if isinstance(f.type, ast.NamedType)]
    if scalars:
        lines += ["", "parameters", *(f"  {_parameter(f)}" for f in scalars)]
    required = [f.name for f in scalars if f.default is None]
    if function.kind not in ("loss", "advantage", "filter"):
        return "\n".join(lines) + "\n"
    reporter = Reporter()
    tree = infer(function, reporter, dict.fromkeys(required, 1.0))
    if tree is None:
        raise SourceError(tuple(reporter))
    if required:
        lines.append(f"  shown for {', '.join(f'{name} = 1' for name in required)}")
    return "\n".join(lines) + "\n\n" + render(tree)


def _parameter(field: ast.Field) -> str:
    from forgedsl.format.expressions import Expressions
    from forgedsl.format.notes import Notes

    printer = Expressions(Notes(None))
    default = "" if field.default is None else f" = {printer.flat(field.default)}"
    return f"{field.name} : {printer.type(field.type)}{default}"
