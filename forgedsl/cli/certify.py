"""`forgec certify FILE --against my_loss.py:fn`: a loss of a file against a function in PyTorch.

Exit codes: 0 they are equal; 1 they differ, or the file has errors; 2 one of them cannot be called.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli.parser import Parser

if TYPE_CHECKING:
    from forgedsl_runtime.losses import LossFunction
    from forgedsl_runtime.losses.certify import Function, Verdict


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def parser() -> Parser:
    parser = Parser("certify", command.__doc__, "FILE --against FILE.py:FUNCTION")
    parser.add_argument("file", type=Path, metavar="FILE", help="a .forge file")
    parser.add_argument(
        "--against", required=True, metavar="FILE.py:FUNCTION",
        help="the function; its parameters have the names of the loss's fields",
    )  # fmt: skip
    parser.add_argument("--loss", metavar="NAME", help="the loss, if the file has several")
    parser.add_argument(
        "--name", action="append", metavar="PARAMETER=FIELD",
        help="a parameter of the function and the field that it gets; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=float, default=1e-6, metavar="X",
        help="difference that counts as equal, relative to the largest number",
    )  # fmt: skip
    parser.add_argument("--profile", default="none", metavar="NAME", help="profile of the file")
    parser.add_overrides()
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path,
    against: str,
    loss: str | None,
    name: list[str] | None,
    tolerance: float,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    format_: Format,
) -> None:
    """Compare a loss of FILE with a function in PyTorch on random batches, value and gradient, and
    say what differs first, and how.

    The function gets float64 tensors: [B, T] log-probs and masks, [B] advantages. It returns the
    loss, a scalar. It runs in this process.

    Examples:
      forgec certify sums.forge --against my_loss.py:clipped
      forgec certify sums.forge eps=0.3 --against my_loss.py:clipped
      forgec certify grpo.forge --against other.py:loss --name old_log_prob=behavior
    """
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.waiting import waiting
    from forgedsl.errors import ForgeError

    try:
        if not 0 <= tolerance < 1:
            raise SideError(f"--tolerance is at least 0 and less than 1, not {tolerance:g}")
        _check_files(file, against)
    except SideError as error:
        print(f"forgec certify: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    with waiting("loading PyTorch"):
        from forgedsl_runtime.losses.certify import CallError, certify
    try:
        function = _loss(file, loss, profile, tuple(set_ or ()), tuple(set_file or ()))
        names = _names(name or ())
        found = certify(function, _function(against), names=names, tolerance=tolerance)
    except (SideError, CallError, ForgeError) as error:
        print(f"forgec certify: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    if format_ is Format.JSON:
        print(json.dumps(_data(function.name, found), indent=1))
    else:
        print("\n".join(_lines(function.name, against, found)))
    raise SystemExit(1 if found.what else 0)


def _check_files(file: Path, against: str) -> None:
    """Raise a SideError if one of the two files cannot be read, before PyTorch is loaded."""
    from forgedsl.cli.compiling import unreadable
    from forgedsl.cli.overrides import SideError

    if why := unreadable(file):
        raise SideError(why)
    path, sign, _ = against.rpartition(":")
    if not sign or not Path(path).is_file():
        missing = f"no such file: {path}" if sign else f"not {against}"
        raise SideError(f"--against is FILE.py:FUNCTION; {missing}")


def _loss(
    file: Path, name: str | None, profile: str, overrides: tuple[str, ...],
    set_files: tuple[Path, ...],
) -> LossFunction:  # fmt: skip
    """Return the loss of this name with its parameters, as a step of the flow uses it; of a file
    without a flow, as it is declared."""
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import compile_side
    from forgedsl_runtime.losses import LossFunction, compile_loss

    if not _has_flow(file):
        if overrides or set_files:
            raise SideError(f"{file} has no flow: its losses are compared with their defaults")
        return compile_loss(file, name, backend="torch")
    losses = compile_side(file, profile, overrides, set_files).job.losses
    listed = ", ".join(losses)
    if name is None and len(losses) != 1:
        raise SideError(
            f"{file} uses {listed}; choose one by --loss" if losses else f"{file} uses no loss"
        )
    found = losses.get(name or listed)
    if found is None:
        raise SideError(f"the flow of {file} uses no loss `{name}`, but {listed}")
    return LossFunction.from_job(found, "torch")


def _has_flow(file: Path) -> bool:
    from forgedsl.diagnostics import Reporter
    from forgedsl.source import SourceFile
    from forgedsl.syntax import ast, parse

    text = file.read_text("utf-8")
    decls = parse(SourceFile(str(file), text), Reporter()).decls
    return any(isinstance(decl, ast.BlockDecl) and decl.kind == "flow" for decl in decls)


def _names(given: Sequence[str]) -> dict[str, str]:
    from forgedsl.cli.overrides import SideError

    found = {}
    for text in given:
        theirs, sign, field = text.partition("=")
        if not (theirs and sign and field):
            raise SideError(f"--name is PARAMETER=FIELD, such as old_log_prob=behavior, not {text}")
        found[theirs] = field
    return found


def _function(against: str) -> Function:
    """Load the function from its file.

    Raises:
        SideError: the function does not exist, or loading its file fails.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    from forgedsl.cli.overrides import SideError
    from forgedsl_runtime.tracebacks import described

    path, _, name = against.rpartition(":")
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise SideError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SideError(f"{path} cannot be loaded: {described(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise SideError(f"{path} has no function `{name}`")
    return function  # type: ignore[no-any-return]


def _data(name: str, found: Verdict) -> dict[str, Any]:
    from dataclasses import asdict

    return {"format_version": "1.0", "loss": name, "equal": not found.what, **asdict(found)}


def _lines(name: str, against: str, found: Verdict) -> list[str]:
    from forgedsl.diagnostics import counted

    by, compared = " and ".join(found.by), counted(found.batches, "batch")
    if not found.what:
        return [
            f"{name} and {against} are equal: value and gradient by {by}, in {compared}",
            f"  largest difference, relative to the largest number: {found.largest:.1e} (float64)",
        ]
    lines = [
        f"{name} and {against} differ in the {found.what}",
        f"  first in a batch with: {found.stage} ({compared} compared)",
        f"  value {found.ours:.8g} in the file, {found.theirs:.8g} in the function",
    ]
    return [*lines, *(f"  {text}" for text in found.how)]
