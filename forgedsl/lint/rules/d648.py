"""D648 rewritten-history: the chat template changes earlier turns, and the environment keeps them.

Chat templates of thinking models drop the thoughts of earlier turns. With `history = append`, the
default of an environment, the policy sees its turns as it wrote them. It then learns from
conversations that a server with this template never shows, and the thoughts fill the context
(prime-rl #1334, verl #6854).

    environment shop = game.Game { }                        # fires: Qwen3's published template
    environment shop = game.Game { history = template }     # silent

Write `history = template` to train on what the template shows; each turn that it changes adds a
training row. The rule also fires if `history = template` has no effect, because the prompt is plain
text. It reads `chat_template` and the chat template of a local model; for other models the run
warns when it starts. Most templates keep thoughts when a tool result follows, so the rule is mostly
silent for environments with tools.
"""

from __future__ import annotations

from forgedsl.chats import known_to_append
from forgedsl.diagnostics import Label
from forgedsl.ir.program import model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import form_of, played_in, template_of
from forgedsl.lint.view import View, place

finding = rule(__doc__, "I")


def check(view: View) -> Findings:
    for step in view.program.flow:
        env, dataset = played_in(view, step)
        if env is None or dataset is None:
            continue
        # an agent always sends messages
        form = "chat" if env.body.agent else form_of(view, dataset)
        history = env.settings["history"]
        used = (Label(text="played here", span=step.span),)
        follows = history.value == "template"
        if follows and form == "text":
            yield finding(
                f"`history = template` of `{env.name}` has no effect: the prompt is plain text",
                place(history, env),
                related=used,
                help="`prompt = chat(...)`, or remove it",
            )
        elif not follows and form == "chat":
            model = view.program.models[model_of(view.program.services[step.receiver])]
            template, where = template_of(view, model)
            tools = bool(env.body.tools or env.body.served)
            if template and known_to_append(template, tools=tools) is False:
                yield finding(
                    f"the chat template of `{model.name}` changes earlier turns (it drops their "
                    f"thoughts, for example), but `{env.name}` keeps them as sampled",
                    place(model.settings[where], model),
                    related=used,
                    help="`history = template` of the environment trains on what the template "
                    "shows, in one more row for each turn that it rewrites",
                )
