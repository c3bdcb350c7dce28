"""D643 tag-prefilled: the chat template writes a tag that a reward expects in the completion.

Templates of reasoning models end with `<think>`, so that the completion begins inside of it. The
tag is then part of the prompt: no completion contains it, and a reward for `<think>...</think>` is
always 0 (verifiers #763, TRL #6966). Reward the closing tag alone.

    chat_template = "...{% if add_generation_prompt %}assistant: <think>{% endif %}"
    reward thinking = rl.think_tags                              # fires
    reward thinking = rl.format_regex("(?s).*</think>.*")        # silent: the closing tag alone

    prompt = row.question + " <think>"                           # fires
    re.match(r"<think>.*</think>", response)                     # fires: of a reward in Python
    re.match(r"(<think>)?.*</think>", response)                  # silent

The rule knows DeepSeek-R1 and its distillations, QwQ, and Qwen's Thinking models by name.
"""

import re

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast

finding = rule(__doc__, "D")
TAG = "<think>"
PREFILLED = re.compile(r"deepseek-ai/DeepSeek-R1|Qwen/QwQ|Qwen/Qwen3-.*Thinking")


def check(view: View) -> Findings:
    wanted = [
        reward
        for reward in view.program.rewards.values()
        if isinstance(reward.body, Constructor)
        and (reward.body.name == "think_tags" or TAG in str(reward.body.args.get("pattern")))
    ]
    wanted += [found.reward for found in python_rewards(view) if _begins(found)]
    for dataset in view.program.datasets.values() if wanted else ():
        last = _last_text(dataset.settings["prompt"].value)
        if last is not None and last.value.rstrip().endswith(TAG):
            yield finding(
                f"the prompt ends with `{TAG}`, which `{wanted[0].name}` looks for in the answer",
                last.span,
                related=(Label(text="looks for it", span=place_of(wanted[0], view)),),
                help='look for the closing tag alone: `rl.format_regex("(?s).*</think>.*")`',
            )
    for name in dict.fromkeys(service.ctor_args[0].name for service in view.samplers()):
        model = view.program.models[name]
        if wanted and _prefills(model):
            told = model.settings["chat_template" if _template(model) else "source"]
            yield finding(
                f"the template ends with `{TAG}`, which `{wanted[0].name}` looks for in the answer",
                place(told, model),
                related=(Label(text="looks for it", span=place_of(wanted[0], view)),),
                help='look for the closing tag alone: `rl.format_regex("(?s).*</think>.*")`',
            )


def _begins(found: PythonReward) -> bool:
    """True if a reward in Python wants the completion to begin with the tag."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of

    body = body_of(found)
    for search in body.searches:
        begins = search.pattern.startswith("^") or search.method in ("match", "fullmatch")
        if begins and re.match(r"\^?(\\s\*)?<think>", search.pattern):
            return True
    return any(
        isinstance(node, python.Call)
        and getattr(node.func, "attr", "") == "startswith"
        and any(isinstance(arg, python.Constant) and arg.value == TAG for arg in node.args)
        for node in python.walk(found.definition)
    )


def _last_text(prompt: object) -> ast.String | None:
    """Return the string that a plain prompt ends with: the last of `"..." + row.x + "..."`."""
    expr = prompt.expr if isinstance(prompt, Deferred) else None
    while isinstance(expr, ast.Binary) and expr.operator == "+":
        expr = expr.right
    return expr if isinstance(expr, ast.String) else None


def _template(model: Decl) -> str:
    template = model.settings["chat_template"].value
    return template if isinstance(template, str) else ""


def _prefills(model: Decl) -> bool:
    if template := _template(model):
        return TAG in template.partition("add_generation_prompt")[2]
    source = model.settings["source"].value
    return getattr(source, "name", "") == "hf" and bool(PREFILLED.match(str(source.args["id"])))
