"""D653 answers-without-end: demonstrations are rendered without an end token.

    model base { chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}" }     # fires
    chat_template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"     # silent

A model learns to stop from the end token of the answers it is trained on. If the template writes
none, the trained model goes on until `max_tokens` (TRL #1623). Write `{{ eos_token }}`, or the end
marker of the model, after the answer. The rule looks at templates in the program for a dataset with
`chat`. A template with markers such as `<|im_end|>` is rendered with an example. The rule fires if
a marker follows the user's turn, and none follows the last answer.
"""

import re

from forgedsl.ir.program import model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
ENDS = re.compile(r"eos_token|<[^<>\s]+>|\[/\w+\]|tokenizer")
"""what may write an end token: a variable, or a marker"""


def check(view: View) -> Findings:
    drawn = {step.receiver for step in view.program.flow if Role.SAMPLES not in step.roles}
    chats = [d for n, d in view.program.datasets.items() if n in drawn]
    if not any(dataset.settings["chat"].value is not None for dataset in chats):
        return
    for name in dict.fromkeys(model_of(view.program.services[s.receiver]) for s in view.steps):
        model = view.program.models[name]
        template = model.settings["chat_template"]
        if isinstance(template.value, str) and not _ends(template.value):
            yield finding(
                f"this chat template never ends an answer, so `{name}` does not learn to stop",
                place(template, model),
                help="write the end token after the answer: `{% if m.role == 'assistant' %}"
                "{{ eos_token }}{% endif %}`",
            )


def _ends(template: str) -> bool:
    """True if a template ends answers, as far as its text or an example shows."""
    if not ENDS.search(template):
        return False
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # imported late: few have a template

    turns = (("user", "ASKED"), ("assistant", "SAID"))
    messages = [{"role": role, "content": text} for role, text in turns]
    try:
        made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        text = made.from_string(template).render(
            messages=messages, eos_token="<eos>", bos_token="<bos>", add_generation_prompt=False
        )
    except (TemplateError, TypeError, ValueError):
        return True  # the template needs more than this example has; a run reports broken ones
    between, answered, behind = text.partition("ASKED")[2].partition("SAID")
    is_marked = ENDS.match(between.lstrip()) is not None
    return not (answered and is_marked) or ENDS.search(behind) is not None
