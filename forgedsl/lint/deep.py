"""`lint --deep`: what the file refers to, outside of it.

    D611 missing-column   `row.x`, where the first row of a local dataset has no `x`
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
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.hir.ir import Constructor, Decl, Deferred, Program, PythonFunction
from forgedsl.hir.suggest import did_you_mean, nearest
from forgedsl.lint.finding import Finding
from forgedsl.lint.rewards import place_of
from forgedsl.lint.rules import d607
from forgedsl.lint.view import View, place
from forgedsl.shipped import locate
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

SECONDS = 120
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
                yield from _columns(dataset, source, path)
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


def _columns(dataset: Decl, source: Constructor, path: Path) -> Iterator[Diagnostic]:
    """Columns that the dataset reads and its first row lacks."""
    with path.open(encoding="utf-8") as file:
        line = next((line for line in file if line.strip()), "{}")
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict):
        yield error("D611", "missing-column", "the first row is no JSON object", source.span)
        return
    settings = (s.value for s in dataset.settings.values() if isinstance(s.value, Deferred))
    for node in (node for value in settings for node in walk(value.expr)):
        is_column = isinstance(node, ast.Path) and node.parts[0] == "row" and len(node.parts) > 1
        if is_column and node.parts[1] not in row:
            close = did_you_mean(nearest(node.parts[1], row))
            yield error(
                "D611",
                "missing-column",
                f"rows of `{dataset.name}` have no column `{node.parts[1]}`",
                node.span,
                related=(Label(text="its rows", span=source.span),),
                help=close or f"columns are {', '.join(f'`{name}`' for name in row)}",
            )


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
            finding = Finding(d607.CODE, d607.NAME, d607.LEVEL)
            yield finding(
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
