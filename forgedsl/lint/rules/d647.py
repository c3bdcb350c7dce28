"""D647 untold-tools: the prompt does not tell the policy about its tools.

A chat template writes the tools of an environment into the prompt if it uses `tools`. If it does
not, or the prompt is plain text, the prompt has only the question: the policy never calls a tool,
and learns to guess.

    dataset orders { prompt = "Order: " + row.item, ... }              # fires: a plain text
    chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"     # fires
    chat_template = "{{ tools | tojson }}{% for m in messages %}..."         # silent
    dataset orders { prompt = chat("lookup(item) is the price.", row.item) } # silent: named

Make the prompt with `chat` and a template that uses `tools`, or name the tools in the prompt. The
rule is also silent if a string in the environment's file names the tool. It reads `chat_template`,
the chat template of a local model, and, for a prompt that is a column, the first row of a local
.jsonl file. `forgec run --dry-run` plays a turn and checks the actual prompt. If the policy has
learned the calls from demonstrations, write `# forge: allow[D647] REASON`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.ir.program import (
    Constant,
    Constructor,
    Decl,
    Deferred,
    EnvironmentDecl,
    FlowStep,
    model_of,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.shipped import locate
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
CHATS = ("chat", "sharegpt")


def check(view: View) -> Findings:
    for step in view.program.flow:
        shop, dataset = _played(view, step)
        if shop is None or dataset is None:
            continue
        prompt = dataset.settings["prompt"]
        untold = _untold(shop, list(_texts(view, dataset)))
        form = _form(view, dataset) if untold else ""
        used = (Label(text="played here", span=step.span),)
        if form == "text":
            yield finding(
                f"nothing tells the policy of {untold} of `{shop.name}`: the prompt is plain text",
                place(prompt, dataset),
                related=used,
                help="`prompt = chat(...)`, so that the template shows the tools, or name them",
            )
        elif form == "chat":
            model = view.program.models[model_of(view.program.services[step.receiver])]
            template, where = _template(view, model)
            if template and not re.search(r"\btools\b", template):
                yield finding(
                    f"nothing tells the policy of {untold} of `{shop.name}`: the chat template "
                    f"of `{model.name}` does not show `tools`",
                    place(model.settings[where], model),
                    related=used,
                    help="set `chat_template` to one that does, or name the tools in a message",
                )


def _played(view: View, step: FlowStep) -> tuple[EnvironmentDecl | None, Decl | None]:
    """Yield the environments with tools that the flow plays in, with the dataset of the prompts."""
    env = step.settings.get("env")
    shop = None if env is None else view.program.environments.get(getattr(env.value, "name", ""))
    if shop is None or not (shop.body.tools or shop.body.served):
        return None, None
    edges = {read.edge for read in step.inputs}
    drawn = [s for s in view.program.flow if Role.PROMPTS in s.roles and s.name in edges]
    return shop, view.program.datasets.get(drawn[0].receiver) if drawn else None


def _untold(shop: EnvironmentDecl, texts: list[str]) -> str:
    """Return the tools that no text names, for a message. The tools of an MCP server are unknown
    here, so a text that mentions tools counts."""
    texts += shop.body.texts
    missing = [
        f"`{tool.name}`"
        for tool in shop.body.tools
        if not any(re.search(rf"\b{re.escape(tool.name)}\b", text) for text in texts)
    ]
    if shop.body.served and not any("tool" in text.lower() for text in texts):
        missing.append("the tools of the server")
    return ", ".join(missing)


def _texts(view: View, dataset: Decl) -> Iterator[str]:
    """Yield the texts of a prompt: strings in its expression, in parameters, and in the first
    row."""
    prompt = dataset.settings["prompt"].value
    if not isinstance(prompt, Deferred):
        return
    for node in walk(prompt.expr):
        if isinstance(node, ast.String):
            yield node.value
        elif isinstance(node, ast.Path):
            found = prompt.scope.lookup(node.parts)
            if isinstance(found, Constant) and isinstance(found.value, str):
                yield found.value
    row = _first_row(view, dataset)
    for keys, _ in reads(prompt.expr, "row") if row is not None else ():
        yield json.dumps(_at(row, keys), ensure_ascii=False)


def _form(view: View, dataset: Decl) -> str:
    """Return `chat` or `text`, the form of the prompt; "" if it depends on the rows."""
    prompt = dataset.settings["prompt"].value
    if not isinstance(prompt, Deferred):
        return ""
    expr = prompt.expr
    if any(isinstance(n, ast.Call) and n.function.text in CHATS for n in walk(expr)):
        return "chat"
    if isinstance(expr, ast.String) or (isinstance(expr, ast.Binary) and expr.operator == "+"):
        return "text"
    row = _first_row(view, dataset)
    keys = next((keys for keys, node in reads(expr, "row") if node is expr), None)
    found = None if row is None or keys is None else _at(row, keys)
    return "text" if isinstance(found, str) else "chat" if isinstance(found, list) else ""


def _at(row: Any, keys: tuple[str | int, ...]) -> Any:
    """Return the value of a row at `row.a[0].b`, or None."""
    for key in keys:
        try:
            row = row[key]
        except (KeyError, IndexError, TypeError):
            return None
    return row


def _first_row(view: View, dataset: Decl) -> Any:
    """Return the first row of a local .jsonl file, if it can be read."""
    source = dataset.settings["source"].value
    if view.folder is None or not view.shared.on_disk:
        return None
    if not isinstance(source, Constructor) or source.name != "jsonl":
        return None
    try:
        with locate(str(source.args["path"]), view.folder).open(encoding="utf-8") as file:
            return json.loads(next(filter(str.strip, file), "null"))
    except (OSError, ValueError):
        return None  # P210 and D611 report it


def _template(view: View, model: Decl) -> tuple[str, str]:
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
        found = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return "", where  # P210 reports a missing folder, the run a broken tokenizer
    template = found.get("chat_template") if isinstance(found, dict) else None
    return (template if isinstance(template, str) else ""), where
