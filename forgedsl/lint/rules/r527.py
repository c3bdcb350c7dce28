"""R527 unasked-form: a reward expects tags that the prompt does not ask for.

A model that does not know about `<answer>` does not write it: the reward is 0 for every completion,
and nothing is learned from it (open-rs #2, verifiers #763).

    dataset sums { system = "Solve the problem.", prompt = chat(system, row.question), ... }
    reward thinking = rl.think_tags                              # fires
    reward correct = rl.math_equal(which = first_tag)            # fires
    dataset sums { system = "Think in <think>, answer in <answer>.", ... }      # silent

    re.findall(r"\\\\boxed{(.*?)}", response)              # fires if the prompt asks for <answer>

Name the tags in `system`, in the prompt, or in the model's `chat_template`. The rule is silent if
another profile asks for them, and if the prompt contains a file.
"""

from forgedsl.ir.program import Constant, Constructor, Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role

finding = rule(__doc__, "W", everywhere=True)
TAG = "<answer>"
FORMS = {TAG: TAG, "boxed": r"\boxed{}"}
"""forms of an answer: text in a pattern or a prompt -> name in messages"""


def check(view: View) -> Findings:
    yield from _in_python(view)
    program = view.program
    for reward in program.rewards.values():
        body = reward.body
        wanted = _tag(body) if isinstance(body, Constructor) else ""
        drawn = [program.datasets[s.receiver] for s in program.flow if Role.PROMPTS in s.roles]
        if wanted and drawn and not any(_asks(view, dataset, wanted) for dataset in drawn):
            yield finding(
                f"`{reward.name}` wants `{wanted}`, and the prompt never asks for it",
                place_of(reward, view),
                help="say in `system` which tags to write",
            )


def _in_python(view: View) -> Findings:
    """Yield findings for rewards in Python that read one form, where the program asks for another
    one."""
    rewards = python_rewards(view)
    if not rewards:
        return
    forms = [(found, wanted) for found in rewards if (wanted := found.once(_form))]
    written = [n.value for n in walk(view.file) if isinstance(n, ast.String)] if forms else []
    for found, wanted in forms:
        other = next((form for form in FORMS if form != wanted), "")
        drawn = drawn_from(view)
        asked = any(wanted in text for text in written) or any(
            _asks(view, dataset, wanted) for dataset in drawn
        )
        if drawn and not asked and any(other in text for text in written):
            yield finding(
                f"`{found.reward.name}` reads `{FORMS[wanted]}`, and the prompt asks for "
                f"`{FORMS[other]}`",
                place_of(found.reward, view),
                help=f"ask for `{FORMS[wanted]}`, or read `{FORMS[other]}`",
            )


def _form(found: PythonReward) -> str:
    """Return the one form that a reward searches for; "" if there are several, or none."""
    from forgedsl.lint.python_bodies import body_of  # imported late: most programs have no Python

    read = {form for s in body_of(found).searches for form in FORMS if form in s.pattern}
    return read.pop() if len(read) == 1 else ""


def _tag(body: Constructor) -> str:
    """Return the tag without which a reward is 0."""
    if body.name == "think_tags":
        return f"<{body.args['tag']}>" if body.args["which"] == "any" else TAG
    only = str(body.args.get("which")).endswith("tag")
    return TAG if only or TAG in str(body.args.get("pattern")) else ""


def _asks(view: View, dataset: Decl, tag: str) -> bool:
    """True if the text around the rows names the tag, or is unknown here."""
    templates = [model.settings["chat_template"].value for model in view.program.models.values()]
    texts = [dataset.settings["system"].value, *templates]
    prompt = dataset.settings["prompt"].value
    if isinstance(prompt, Deferred):
        for node in walk(prompt.expr):
            if isinstance(node, ast.String):
                texts.append(node.value)
            elif isinstance(node, ast.Call) and node.function.text == "file":
                return True
            elif isinstance(node, ast.Path):
                found = prompt.scope.lookup(node.parts)
                texts.append(found.value if isinstance(found, Constant) else None)
    return any(tag in text for text in texts if isinstance(text, str))
