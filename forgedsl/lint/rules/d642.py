"""D642 no-generation-prompt: the chat template does not begin the assistant's turn.

The sampler asks the template for a generation prompt, the tokens that begin the assistant's turn.
A template that ignores `add_generation_prompt` ends with the user's turn: the policy goes on as the
user, and what it learns is to write questions (TRL #4201).

    chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"                    # fires
    chat_template = "{% for ... %}{% if add_generation_prompt %}assistant: {% endif %}"     # silent

Write the beginning of the assistant's turn in the template. The rule checks prompts made with
`chat`, which the template renders.
"""

from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    if not any(
        _is_chat(view.program.datasets[s.receiver])
        for s in view.program.flow
        if Role.PROMPTS in s.roles
    ):
        return
    for name in dict.fromkeys(service.ctor_args[0].name for service in view.samplers()):
        model = view.program.models[name]
        template = model.settings["chat_template"]
        if isinstance(template.value, str) and "add_generation_prompt" not in template.value:
            yield finding(
                "this chat template does not begin the assistant's turn",
                place(template, model),
                help="end it with `{% if add_generation_prompt %}...{% endif %}`",
            )


def _is_chat(dataset: Decl) -> bool:
    """True if prompts are messages."""
    prompt = dataset.settings["prompt"].value
    nodes = walk(prompt.expr) if isinstance(prompt, Deferred) else ()
    return any(isinstance(node, ast.Call) and node.function.text == "chat" for node in nodes)
