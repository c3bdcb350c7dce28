"""Prompts and chat templates as far as they are known before a run, for rules.

View, a `play` of the flow --played_in--> environment, dataset --form_of--> chat or text
                           model --template_of--> text of its chat template
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from forgedsl.ir.program import (
    Constant,
    Constructor,
    Decl,
    Deferred,
    EnvironmentDecl,
    FlowStep,
    Scope,
)
from forgedsl.lint.some_rows import some_rows
from forgedsl.lint.view import View
from forgedsl.shipped import locate
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk
from forgedsl.types.flow import Role

CHATS = ("chat", "sharegpt")


REASONS = r"(?i)<think>|\breason(ing)?\b|\bstep[ -]by[ -]step\b|\bthink\b"
"""how a prompt asks for reasoning"""
UNASKED = r"(?i)no_think|\b(no|not|n't|without|never)\W+(\w+\W+)?(reason|think|explain)"


def said_to(dataset: Decl) -> str:
    """Return the text that the program itself writes into each prompt: the system message, and the
    strings of the prompt."""
    prompt = dataset.settings["prompt"].value
    texts = [dataset.settings["system"].value]
    for node in walk(prompt.expr) if isinstance(prompt, Deferred) else ():
        if isinstance(node, ast.String):
            texts.append(node.value)
        elif isinstance(node, ast.Path):
            found = prompt.scope.lookup(node.parts)
            texts.append(found.value if isinstance(found, Constant) else None)
    return "\n".join(dict.fromkeys(text for text in texts if isinstance(text, str)))


def constant_text(node: object, scope: Scope) -> str | None:
    """Return the text of a string, or of a parameter that is one; None for other expressions."""
    if isinstance(node, ast.String):
        return node.value
    found = scope.lookup(node.parts) if isinstance(node, ast.Path) else None
    return found.value if isinstance(found, Constant) and isinstance(found.value, str) else None


def drawn_from(view: View) -> list[Decl]:
    """Return the datasets whose prompts the flow draws."""
    drawn = [step.receiver for step in view.program.flow if Role.PROMPTS in step.roles]
    return [view.program.datasets[name] for name in dict.fromkeys(drawn)]


def asked_to_reason(view: View) -> bool:
    """True if a prompt of the flow asks for reasoning, in text that the .forge file has."""
    texts = [said_to(dataset) for dataset in drawn_from(view)]
    return any(re.search(REASONS, text) and not re.search(UNASKED, text) for text in texts)


def played_in(view: View, step: FlowStep) -> tuple[EnvironmentDecl | None, Decl | None]:
    """Return the environment that a step plays in, and the dataset of its prompts."""
    ref = step.settings.get("env")
    env = None if ref is None else view.program.environments.get(getattr(ref.value, "name", ""))
    if env is None:
        return None, None
    edges = {read.edge for read in step.inputs}
    drawn = [s for s in view.program.flow if Role.PROMPTS in s.roles and s.name in edges]
    return env, view.program.datasets.get(drawn[0].receiver) if drawn else None


def has_turns(step: FlowStep) -> bool:
    """True for `play` with more than one turn."""
    turns = step.settings["max_turns"].value if "max_turns" in step.settings else None
    return "env" in step.settings and turns != 1


def form_of(view: View, dataset: Decl) -> str:
    """Return `chat` or `text`, the form of the prompt; "" if it depends on the rows."""
    prompt = dataset.settings["prompt"].value
    if not isinstance(prompt, Deferred):
        return ""
    expr = prompt.expr
    if any(isinstance(n, ast.Call) and n.function.text in CHATS for n in walk(expr)):
        return "chat"
    if isinstance(expr, ast.String) or (isinstance(expr, ast.Binary) and expr.operator == "+"):
        return "text"
    row = first_row(view, dataset)
    keys = next((keys for keys, node in reads(expr, "row") if node is expr), None)
    found = None if row is None or keys is None else value_at(row, keys)
    return "text" if isinstance(found, str) else "chat" if isinstance(found, list) else ""


def value_at(row: Any, keys: tuple[str | int, ...]) -> Any:
    """Return the value of a row at `row.a[0].b`, or None."""
    for key in keys:
        try:
            row = row[key]
        except (KeyError, IndexError, TypeError):
            return None
    return row


LONGEST = 1 << 22
"""bytes of the longest file whose rows are counted"""
COUNTS = re.compile(r"gsm|svamp|multiarith|addsub|singleeq|\baime", re.IGNORECASE)
"""published sets whose answers are whole numbers"""
FORMS = ("jsonl", "json", "csv")
"""local files of which some rows are read"""


def rows_of(view: View, part: Constructor) -> list[dict[str, Any]]:
    """Return some rows of a local file. Cached for all views."""
    if part.name not in FORMS or view.folder is None or not view.shared.on_disk:
        return []
    path = locate(str(part.args["path"]), view.folder)
    key = ("some rows", path, part.name)
    if key not in view.shared.answers:
        try:
            view.shared.answers[key] = _some_rows(path, part.name, *_stamp(path))
        except (OSError, ValueError):
            view.shared.answers[key] = []  # P210 and --deep say why
    rows: list[dict[str, Any]] = view.shared.answers[key]
    return rows


def row_count(view: View, part: Constructor) -> int:
    """Return the number of rows of a local `.jsonl` file; 0 if it is not known, or if the file is
    long. Cached for all views."""
    if part.name != "jsonl" or view.folder is None or not view.shared.on_disk:
        return 0
    path = locate(str(part.args["path"]), view.folder)
    key = ("row count", path)
    if key not in view.shared.answers:
        try:
            view.shared.answers[key] = _row_count(path, *_stamp(path))
        except OSError:
            view.shared.answers[key] = 0  # P210 says why
    count: int = view.shared.answers[key]
    return count


def _stamp(path: Path) -> tuple[int, int]:
    """Return the time of change of a file in ns, and its size."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=64)  # an editor checks a text after each pause
def _some_rows(path: Path, form: str, changed: int, size: int) -> list[dict[str, Any]]:
    return some_rows(path, form)


@lru_cache(maxsize=64)
def _row_count(path: Path, changed: int, size: int) -> int:
    lines = path.read_bytes().splitlines() if size <= LONGEST else []
    return sum(map(bool, map(bytes.strip, lines)))


def first_row(view: View, dataset: Decl) -> Any:
    """Return the first row of a local .jsonl file, if it can be read, once for all views."""
    source = dataset.settings["source"].value
    if view.folder is None or not view.shared.on_disk:
        return None
    if not isinstance(source, Constructor) or source.name != "jsonl":
        return None
    path = locate(str(source.args["path"]), view.folder)
    rows = view.shared.answers
    if (first_row, path) not in rows:
        rows[first_row, path] = _first_row(path)
    return rows[first_row, path]


def _first_row(path: Path) -> Any:
    import json

    try:
        with path.open(encoding="utf-8") as file:
            return json.loads(next(filter(str.strip, file), "null"))
    except (OSError, ValueError):
        return None  # P210 and D611 report it


def first_target(view: View) -> str:
    """Return the target of the first row, if the flow draws from one local file and the target is a
    text; "" if not."""
    targets = [_target(view, dataset) for dataset in drawn_from(view)]
    return targets[0] if len(targets) == 1 and isinstance(targets[0], str) else ""


def is_counted(view: View) -> bool:
    """True if the targets are whole numbers: that of the first row of a local file is one, or the
    set is known for it."""
    sources = [dataset.settings["source"].value for dataset in drawn_from(view)]
    names = [str(s.args.get("id", "")) for s in sources if getattr(s, "name", "") == "hf"]
    known = bool(names) and len(names) == len(sources) and all(map(COUNTS.search, names))
    return known or re.fullmatch(r"\s*-?\d{2,}\s*", first_target(view)) is not None


def is_text(view: View, dataset: Decl) -> bool:
    """True if the targets of a dataset are certainly texts: `after(...)`, or a text in the first
    row."""
    value = dataset.settings["target"].value
    expr = value.expr if isinstance(value, Deferred) else None
    made = isinstance(expr, ast.Call) and expr.function.text in ("after", "before")
    return made or isinstance(_target(view, dataset), str)


def _target(view: View, dataset: Decl) -> Any:
    """Return the target of the first row; None if it is not known."""
    value, row = dataset.settings["target"].value, first_row(view, dataset)
    return value_of(value.expr, row) if isinstance(value, Deferred) and row is not None else None


def value_of(node: ast.Expr, row: Any) -> Any:
    """Return the value of a column, or of `after(column, text)`."""
    if isinstance(node, ast.Call) and node.function.text == "after" and len(node.args) == 2:
        text, mark = value_of(node.args[0].value, row), node.args[1].value
        if isinstance(text, str) and isinstance(mark, ast.String) and mark.value in text:
            return text.partition(mark.value)[2]
        return None
    keys = next((keys for keys, read in reads(node, "row") if read is node), None)
    return None if keys is None else value_at(row, keys)


def template_of(view: View, model: Decl) -> tuple[str, str]:
    """Return the chat template of a model, if it is known here, and the setting that gives it."""
    written = model.settings["chat_template"].value
    if isinstance(written, str):
        return written, "chat_template"
    own = model.settings["tokenizer"].value
    where = "tokenizer" if isinstance(own, Constructor) else "source"
    source = model.settings[where].value
    if not isinstance(source, Constructor) or source.name != "local" or view.folder is None:
        return "", where
    if not view.shared.on_disk:
        return "", where
    folder = locate(str(source.args["path"]), view.folder)
    try:
        if (folder / "chat_template.jinja").is_file():
            return (folder / "chat_template.jinja").read_text("utf-8"), where
        import json

        found = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return "", where  # P210 reports a missing folder, the run a broken tokenizer
    template = found.get("chat_template") if isinstance(found, dict) else None
    return (template if isinstance(template, str) else ""), where
