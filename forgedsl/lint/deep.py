"""`lint --deep`: what the file refers to, outside of it.

    D611 missing-column   `row.x`, where rows of a local dataset have no `x`, nested ones too
    D607 stop-tokens      the end tokens that a local model's own metadata names
    X804 python-import    a Python reward that cannot be imported, in a subprocess
    F103 unknown-setting  `engine.extra` that the installed vLLM does not have
    any code of the plan  under the profile and with the hardware of this host

Nothing is downloaded; code of the user runs only in a subprocess, with a time limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Label, Severity, error
from forgedsl.hir.ir import Constructor, Decl, Deferred, Program, PythonFunction
from forgedsl.hir.suggest import did_you_mean, nearest
from forgedsl.lint.rewards import place_of
from forgedsl.lint.rules import d607
from forgedsl.lint.view import View, place
from forgedsl.plan.archs import check_family
from forgedsl.shipped import locate
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import Keys, reads, walk

SECONDS = 120
LOOK_SECONDS = 2.0
"""for the rows of one file"""
FEW = 100
"""as in runtime/data/drops.py"""
IMPORT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("forge_reward", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["forge_reward"] = module
spec.loader.exec_module(module)
if not callable(getattr(module, sys.argv[2], None)):
    raise ImportError(f"{sys.argv[2]} is not a function after the import")
"""
ENGINE = """
import dataclasses, json
from vllm.engine.arg_utils import AsyncEngineArgs
print("ARGS" + json.dumps([field.name for field in dataclasses.fields(AsyncEngineArgs)]))
"""


def check(view: View) -> Iterator[Diagnostic]:
    """The findings of one view."""
    if view.folder is None:
        return
    program = view.program
    for dataset in program.datasets.values():
        for source in _sources(dataset.settings["source"].value):
            path = locate(str(source.args.get("path", "")), view.folder)
            if source.name == "jsonl" and path.is_file():
                yield from _columns(view, dataset, source, path)
    for model in program.models.values():
        yield from check_family(model, view.folder, cache=True)
    yield from _stop_tokens(view, view.folder)
    yield from _rewards(view, view.folder)
    yield from _engines(program)


# ---- files


def _sources(value: Any) -> Iterator[Constructor]:
    if isinstance(value, Constructor):
        if value.name == "mixture":
            for item in value.args["sources"]:
                yield from _sources(item)
        else:
            yield value


def _columns(view: View, dataset: Decl, source: Constructor, path: Path) -> Iterator[Diagnostic]:
    """What the dataset reads of its rows, and rows lack; lines that are no rows."""
    rows = _rows(view, path)
    exprs = [s.value.expr for s in dataset.settings.values() if isinstance(s.value, Deferred)]
    read = {keys: node.span for expr in exprs for keys, node in reads(expr, "row") if keys}
    maybe = {span for expr in exprs for span in _of_branches(expr)}
    columns = tuple(dict.fromkeys(str(name) for _, row in rows for name in row or ()))
    broken = [number for number, row in rows if row is None]
    if broken:
        yield _lack(dataset, source, source.span, broken, len(rows), "is", "JSON object")
    for keys, span in read.items():
        lines = [number for number, row in rows if row is not None and not _has(row, keys)]
        if lines and (len(lines) == len(rows) or span not in maybe):
            name = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)[1:]
            close = did_you_mean(nearest(str(keys[0]), columns)) if keys[0] not in columns else ""
            close = close or f"columns are {', '.join(f'`{name}`' for name in columns)}"
            yield _lack(dataset, source, span, lines, len(rows), "has", f"`{name}`", close)


def _of_branches(expr: ast.Expr) -> Iterator[Span]:
    """What is read in one case only: rows of the other case need not have it."""
    for node in walk(expr):
        if isinstance(node, ast.Conditional):
            for branch in (node.then, node.otherwise):
                yield from (read.span for _, read in reads(branch, "row"))


def _lack(
    dataset: Decl, source: Constructor, span: Span, lines: list[int], looked: int, verb: str,
    what: str, close: str = "",
) -> Diagnostic:  # fmt: skip
    """An error where the run would not start, else a warning."""
    count = len(lines)
    budget = dataset.settings["max_bad_rows"].value
    stops = count == looked or count > budget * max(looked, FEW)
    message = f"of {looked} rows of `{dataset.name}` {count} cannot be used: the first, line "
    message += f"{lines[0]}, {verb} no {what}"
    if count == looked:
        message = f"no row of `{dataset.name}`, of {looked} looked at, {verb} {what}"
    return Diagnostic(
        code="D611",
        name="missing-column",
        severity=Severity.ERROR if stops else Severity.WARNING,
        message=message,
        span=span,
        related=(Label(text="its rows", span=source.span),) if span != source.span else (),
        help=close if stops else "the run leaves them out; more than `max_bad_rows` would end it",
    )


def _rows(view: View, path: Path) -> list[tuple[int, dict[str, Any] | None]]:
    """Rows of a file with their lines, as many as there is time for; None is a line that is none.
    Views share them."""
    known = view.shared.rows
    if path not in known:
        began, found = time.monotonic(), []
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if time.monotonic() - began > LOOK_SECONDS:
                    break
                if line.strip():
                    found.append((number, _row(line)))
            whole = not file.read(1)
        known[path] = found
        rest = "" if whole else ", then the time was up"
        view.shared.looked.append(f"{len(found):,} rows of {path.name} looked at{rest}")
    return known[path]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _has(row: Any, keys: Keys) -> bool:
    for key in keys:
        try:
            row = row[key]
        except (LookupError, TypeError):
            return False
    return row is not None


def _stop_tokens(view: View, folder: Path) -> Iterator[Diagnostic]:
    """D607 with the end tokens of a local model's generation_config.json."""
    for service in view.samplers():
        model = view.program.models[service.ctor_args[0].name]
        source, stop = model.settings["source"].value, service.settings["sampling.stop"]
        if not isinstance(stop.value, list) or "path" not in getattr(source, "args", {}):
            continue
        ends = end_tokens(folder / str(source.args["path"]))
        missing = [end for end in ends if end not in stop.value]
        if missing and len(missing) < len(ends):
            yield d607.finding(
                f"`{service.name}` does not stop at {', '.join(f'`{m}`' for m in missing)}",
                place(stop, service),
                help="name all end tokens of the model, or leave `stop` out",
            )


def end_tokens(folder: Path) -> tuple[str, ...]:
    """The texts of a model's end tokens, as its own files name them."""
    generation, tokenizer = folder / "generation_config.json", folder / "tokenizer_config.json"
    if not generation.is_file() or not tokenizer.is_file():
        return ()
    found = json.loads(generation.read_text("utf-8")).get("eos_token_id", [])
    ids = found if isinstance(found, list) else [found]
    added = json.loads(tokenizer.read_text("utf-8")).get("added_tokens_decoder", {})
    return tuple(added[str(i)]["content"] for i in ids if str(i) in added)


# ---- code


def _rewards(view: View, folder: Path) -> Iterator[Diagnostic]:
    for reward in view.program.rewards.values():
        if isinstance(reward.body, PythonFunction):
            problem = _import(str(folder / reward.body.module), reward.body.name)
            if problem:
                yield error(
                    "X804",
                    "python-import",
                    f"`{reward.body.module}` cannot be imported: {problem}",
                    place_of(reward, view),
                    help="it must import on the workers, with the packages they have",
                )


@cache
def _import(path: str, function: str) -> str:
    """Why a file cannot be imported; "" if it can."""
    return _run([sys.executable, "-c", IMPORT, path, function])[1]


def _run(command: list[str]) -> tuple[str, str]:
    """(output, problem) of a subprocess."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"it took more than {SECONDS} s"
    lines = done.stderr.strip().splitlines()
    return done.stdout, (lines[-1] if lines else "it ended the process") if done.returncode else ""


def _engines(program: Program) -> Iterator[Diagnostic]:
    """`engine.extra` against the arguments of the installed vLLM, where there is one."""
    for service in program.services.values():
        extra = {k[13:]: v for k, v in service.settings.items() if k.startswith("engine.extra.")}
        known = _engine_arguments() if extra else ()
        for name, value in extra.items():
            if known and name not in known:
                yield error(
                    "F103",
                    "unknown-setting",
                    f"the installed vLLM has no argument `{name}`",
                    value.place or place(value, service),
                    help=did_you_mean(nearest(name, known)),
                )


@cache
def _engine_arguments() -> tuple[str, ...]:
    output, _ = _run([sys.executable, "-c", ENGINE])
    line = next((line for line in output.splitlines() if line.startswith("ARGS")), "ARGS[]")
    return tuple(json.loads(line[4:]))
