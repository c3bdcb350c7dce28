"""D653 answers-without-end: demonstrations are rendered without an end token.

    model base { chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}" }     # fires
    chat_template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"     # silent

A model learns to stop from the end token of the answers it is trained on. If the template writes
none, the trained model goes on until `max_tokens` (TRL #1623). Write `{{ eos_token }}`, or the
end marker of the model, after the answer. The rule looks at templates in the program for a dataset
with `chat`; a template with any marker such as `<|im_end|>` is silent.
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
        if isinstance(template.value, str) and not ENDS.search(template.value):
            yield finding(
                f"this chat template never ends an answer, so `{name}` does not learn to stop",
                place(template, model),
                help="write the end token after the answer: `{% if m.role == 'assistant' %}"
                "{{ eos_token }}{% endif %}`",
            )
