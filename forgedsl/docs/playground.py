"""What the playground of the site asks the compiler, in the browser and in tests.

    {"ask": "check", "text": ...}                       findings, graph, plan, names of losses
    {"ask": "loss", "text": ..., "name": ...}           parameters, formula and gradient
    {"ask": "curves", ..., "settings": {}, "at": {}}    value and gradient over ratio and advantage
    {"ask": "complete", "text": ..., "offset": 12}      what may stand at an offset

A request and its answer are JSON. The page runs this module in Pyodide, so that there is only one
compiler.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from forgedsl import api
from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.docs.pictures import both
from forgedsl.errors import SourceError
from forgedsl.explain import losses
from forgedsl.hir.modules import standard_modules
from forgedsl.ide import complete as completion
from forgedsl.ide.hints import graph_page, plan_page
from forgedsl.ide.workspace import Document, Workspace
from forgedsl.ir.program import Function
from forgedsl.lint.engine import AS_WRITTEN
from forgedsl.losses.forward_mode import Point
from forgedsl.losses.grad import differentiate
from forgedsl.losses.infer import infer
from forgedsl.losses.tree import ROW_STATISTICS, Tree
from forgedsl.losses.zero_gradient import silencing
from forgedsl.report.full import render_one
from forgedsl.shipped import shipped_root
from forgedsl.syntax import ast
from forgedsl.types.tensors import SIDES

NAME = "playground.forge"
LEVEL = -1.0
"""initial position of a slider for a log-prob"""
RATIO = "ratio"
"""slider of exp(logprob - behavior)"""
COUNT = 81
"""points of a curve"""
Answer = dict[str, Any]
WORKSPACE = Workspace()
"""has one open text, that of the page"""


def answer(request: str) -> str:
    """Answer a request of the page."""
    asked = json.loads(request)
    document = opened(asked.get("text", ""))
    made = {
        "check": check, "loss": loss, "curves": curves, "complete": complete, "examples": examples,
    }  # fmt: skip
    try:
        return json.dumps(made[asked["ask"]](document, asked))
    except SourceError as error:
        return json.dumps({"error": str(error)})


def opened(text: str) -> Document:
    """Open a text as a file beside the shipped pipelines, whose data and Python it may name. The
    results of a text are kept until another one is opened."""
    path = shipped_root() / NAME
    if text != WORKSPACE.text(path):
        WORKSPACE.open(path, text)
    return WORKSPACE.document(path)


def examples(_: Document, __: Answer) -> Answer:
    """Return the shipped pipelines."""
    files = sorted(shipped_root().glob("*.forge"))
    return {path.stem: path.read_text("utf-8") for path in files}


# ---- findings, graph, plan


def check(document: Document, _: Answer) -> Answer:
    """Return the findings of `forgec lint`, and the drawn graph if there is no error."""
    linted = document.linted
    found = [_finding(document, finding) for finding in linted.diagnostics]
    svg = graph_page(document, format_="svg")
    return {
        "findings": found,
        "graph": None if svg is None else both(svg),
        "plan": plan_page(document),
        "losses": [*_losses(document)],
        "whole": document.is_whole,
    }


def _finding(document: Document, finding: Diagnostic) -> Answer:
    here = finding.span.file == document.name
    text = render_one(finding, document.linted.sources)
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        "message": finding.message,
        "text": text.replace(f"{document.folder}/", ""),
        "start": finding.span.start if here else None,
        "end": finding.span.end if here else None,
    }


def complete(document: Document, asked: Answer) -> Answer:
    """Return what may stand at an offset, as editors get it from `forgec lsp`, and where the part
    begins that is typed already. Offsets count code points."""
    found = completion.complete(document, asked["offset"])
    offers = [
        {"insert": item.insert, "kind": item.name.kind, "detail": item.name.detail,
         "doc": item.name.doc}
        for item in found
    ]  # fmt: skip
    return {"start": found[0].span.start if found else asked["offset"], "offers": offers}


# ---- losses


def _functions(document: Document, overrides: tuple[str, ...] = ()) -> dict[str, Function]:
    """Return the losses of the text, then those of the standard library."""
    found: dict[str, Function] = {}
    for module in standard_modules():
        found |= api.load_functions(module)[0]
    loaded = api.load_text(
        document.text, document.name, folder=document.folder, profile=AS_WRITTEN,
        overrides=overrides,
    )  # fmt: skip
    if loaded.program is not None:
        found |= loaded.program.functions
    return {name: f for name, f in found.items() if f.kind == "loss" and f.python is None}


def _losses(document: Document) -> Iterator[Answer]:
    """Yield the losses, those of the text first."""
    known = _functions(document)
    for name in sorted(known, key=lambda name: (known[name].module, name)):
        yield {"name": name, "module": known[name].module}


def loss(document: Document, asked: Answer) -> Answer:
    """Return what the sliders of a loss move, and its mathematics."""
    function = _functions(document)[asked["name"]]
    tree = _tree(function, {})
    return {
        "settings": [*_scalars(function), *_params(document, function)],
        "inputs": _inputs(tree),
        "text": losses.page(function),
    }


def _tree(function: Function, settings: dict[str, float]) -> Tree:
    """Infer a loss with values for its parameters; SourceError if it has mistakes."""
    reporter = Reporter()
    required = [f.name for f in function.fields
                if isinstance(f.type, ast.NamedType) and f.default is None]  # fmt: skip
    tree = infer(function, reporter, {**dict.fromkeys(required, 1.0), **settings})
    if tree is None:
        raise SourceError(tuple(reporter))
    return tree


def _scalars(function: Function) -> Iterator[Answer]:
    """Yield the parameters of a loss that are numbers."""
    for field in function.fields:
        if isinstance(field.type, ast.NamedType) and field.type.name in ("float", "int"):
            default = 1.0 if field.default is None else getattr(field.default, "value", None)
            if isinstance(default, int | float):
                yield _slider(field.name, float(default), whole=field.type.name == "int")


def _params(document: Document, function: Function) -> Iterator[Answer]:
    """Yield the parameters of the file that a loss of it names and that are numbers."""
    program = document.program
    if program is None or function.module:
        return
    words = set(re.findall(r"\w+", document.text[function.span.start : function.span.end]))
    for name, value in program.params.items():
        if name in words and isinstance(value.value, int | float) and value.value is not True:
            yield _slider(name, float(value.value), whole=isinstance(value.value, int)) | {
                "file": True
            }


def _slider(name: str, value: float, *, whole: bool = False) -> Answer:
    high = 10.0 ** math.ceil(math.log10(2 * abs(value))) if value else 1.0
    return {"name": name, "value": value, "low": 0.0 if value >= 0 else -high, "high": high,
            "step": 1.0 if whole and high > 2 else high / 200}  # fmt: skip


def _names(tree: Tree) -> dict[str, bool]:
    """Return the names of the number inputs of a tree, with `.chosen` and `.rejected` for pairs.
    The value is True for an input with a number per token."""
    found: dict[str, bool] = {}
    for value in tree.values:
        if value.op == "input" and value.type.dtype == "f32":
            sides = [f".{side}" for side in SIDES] if "P" in value.type.axes else [""]
            found |= {f"{value.attr}{side}": value.type.tokens is not None for side in sides}
    return found


def _inputs(tree: Tree) -> list[Answer]:
    """Return a slider for each input. The log-prob of the sampler is given as a ratio."""
    found = []
    weights = {field.name for field in silencing(differentiate(tree))}
    names = _names(tree)
    for name, of_tokens in names.items():
        stem = name.partition(".")[0]
        if name == "behavior" and "logprob" in names:
            found.append({"name": RATIO, "value": 1.0, "low": 0.02, "high": 3.0, "step": 0.02})
        elif stem in weights or stem.startswith("adv") or not of_tokens:
            found.append({"name": name, "value": 1.0, "low": -2.0, "high": 2.0, "step": 0.05})
        elif stem == "entropy":
            found.append({"name": name, "value": 0.5, "low": 0.0, "high": 5.0, "step": 0.05})
        else:
            found.append({"name": name, "value": LEVEL, "low": -5.0, "high": 0.0, "step": 0.05})
    return found


def curves(document: Document, asked: Answer) -> Answer:
    """Return value and slope (d loss / d logprob) of one token, over the ratio (without a sampler:
    over the log-prob) and over each weight such as the advantage."""
    settings = asked["settings"]
    files = {name: value for name, value in settings.items() if name in asked["file"]}
    function = _functions(document, tuple(f"{n}={v:g}" for n, v in files.items()))[asked["name"]]
    tree = _tree(function, {n: v for n, v in settings.items() if n not in files})
    sliders = _inputs(tree)
    at = {slider["name"]: asked["at"].get(slider["name"], slider["value"]) for slider in sliders}
    first = RATIO if RATIO in at else next(n for n in at if n.partition(".")[0] in ROW_STATISTICS)
    over = [first, *(s["name"] for s in sliders if s["low"] < 0 < s["high"])]
    wrt = next((name for name in at if name.startswith("logprob")), first)
    charts = []
    for name in over:
        slider = next(slider for slider in sliders if slider["name"] == name)
        xs = [slider["low"] + (slider["high"] - slider["low"]) * i / (COUNT - 1)
              for i in range(COUNT)]  # fmt: skip
        points = [_point(tree, {**at, name: x}, wrt) for x in xs]
        charts.append({"over": name, "at": at[name], "x": xs, "value": [p[0] for p in points],
                       "slope": [p[1] for p in points]})  # fmt: skip
    value, slope = _point(tree, at, wrt)
    return {"charts": charts, "value": value, "slope": slope, "wrt": wrt}


def _point(tree: Tree, at: dict[str, float], wrt: str) -> tuple[float | None, float | None]:
    """Return value and slope of a token; None where one is not finite."""
    inputs = {"truncated": 0.0, "truncated.chosen": 0.0, "truncated.rejected": 0.0, **at}
    if RATIO in at:
        inputs["behavior"] = at["logprob"] - math.log(at[RATIO])
    found = Point(tree.values, inputs, wrt=wrt, default=1.0)(tree.output("loss"))
    value, slope = (x if math.isfinite(x) else None for x in (found.value, found.slope))
    return value, slope
