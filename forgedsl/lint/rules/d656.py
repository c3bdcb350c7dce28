"""D656 thoughts-removed: demonstrations have thoughts, and the chat template leaves them out.

    chat = chat(user = row.q, assistant = "<think>" + row.why + "</think>" + row.a)
    chat_template = "... {{ m.content.split('</think>')[-1] }} ..."        # fires
    chat_template = "... {{ m.content }} ..."                              # silent

The model is trained on answers without thoughts, and learns to answer at once. Many templates drop
the thoughts of earlier turns; one that drops them everywhere is for chats, not for training
(TRL #6361). Write `m.content` whole. The rule looks for thoughts in the program's text and in the
first row of a local .jsonl file.
"""

import re

from forgedsl.ir.program import Decl, Deferred, model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_row, template_of
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
REMOVES = re.compile(r"""split\(\s*['"]</think>['"]\s*\)\s*(\[-1\]|\|\s*last)""")
TAG = "<think>"


def check(view: View) -> Findings:
    drawn = {step.receiver for step in view.program.flow if Role.SAMPLES not in step.roles}
    chats = [d for n, d in view.program.datasets.items() if n in drawn]
    chats = [d for d in chats if d.settings["chat"].value is not None]
    if not chats:
        return
    for name in dict.fromkeys(model_of(view.program.services[s.receiver]) for s in view.steps):
        model = view.program.models[name]
        text, where = template_of(view, model)
        if not REMOVES.search(text) or TAG in text:
            continue
        if any(_has_thoughts(view, dataset) for dataset in chats):
            yield finding(
                "this chat template removes all thoughts, and the demonstrations have some",
                place(model.settings[where], model),
                help="`{{ m.content }}`, without `split`",
            )


def _has_thoughts(view: View, dataset: Decl) -> bool:
    chat = dataset.settings["chat"].value
    written = walk(chat.expr) if isinstance(chat, Deferred) else ()
    if any(isinstance(node, ast.String) and TAG in node.value for node in written):
        return True
    return TAG in str(first_row(view, dataset))
