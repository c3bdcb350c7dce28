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

from forgedsl.diagnostics import Label
from forgedsl.ir.program import (
    Constant,
    Decl,
    Deferred,
    EnvironmentDecl,
    model_of,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_row, form_of, played_in, template_of, value_at
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for step in view.program.flow:
        env, dataset = played_in(view, step)
        if env is None or dataset is None or not (env.body.tools or env.body.served):
            continue
        prompt = dataset.settings["prompt"]
        untold = _untold(env, list(_texts(view, dataset)))
        form = form_of(view, dataset) if untold else ""
        used = (Label(text="played here", span=step.span),)
        if form == "text":
            yield finding(
                f"the prompt does not name {untold} of `{env.name}`: it is plain text",
                place(prompt, dataset),
                related=used,
                help="`prompt = chat(...)`, so that the template shows the tools, or name them",
            )
        elif form == "chat":
            model = view.program.models[model_of(view.program.services[step.receiver])]
            template, where = template_of(view, model)
            if template and not re.search(r"\btools\b", template):
                yield finding(
                    f"the prompt does not name {untold} of `{env.name}`, and the chat template of "
                    f"`{model.name}` does not show `tools`",
                    place(model.settings[where], model),
                    related=used,
                    help="set `chat_template` to one that does, or name the tools in a message",
                )


def _untold(env: EnvironmentDecl, texts: list[str]) -> str:
    """Return the tools that no text names, for a message. The tools of an MCP server are unknown
    here, so a text that mentions tools counts."""
    texts += env.body.texts
    missing = [
        f"`{tool.name}`"
        for tool in env.body.tools
        if not any(re.search(rf"\b{re.escape(tool.name)}\b", text) for text in texts)
    ]
    if env.body.served and not any("tool" in text.lower() for text in texts):
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
    row = first_row(view, dataset)
    for keys, _ in reads(prompt.expr, "row") if row is not None else ():
        yield json.dumps(value_at(row, keys), ensure_ascii=False)
