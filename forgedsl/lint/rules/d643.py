"""D643 tag-prefilled: the chat template writes a tag that a reward expects in the completion.

Templates of reasoning models end with `<think>`, so that the completion begins inside of it. The
tag is then part of the prompt: no completion contains it, and a reward for `<think>...</think>` is
always 0 (verifiers #763, TRL #6966). Reward the closing tag alone.

    chat_template = "...{% if add_generation_prompt %}assistant: <think>{% endif %}"
    reward thinking = rl.think_tags                              # fires
    reward thinking = rl.format_regex("(?s).*</think>.*")        # silent: the closing tag alone

    prompt = row.question + " <think>"                           # fires
    re.match(r"<think>.*</think>", response)                     # fires: a reward in Python
    re.match(r"(<think>)?.*</think>", response)                  # silent

In a prompt that is text, the rule finds every tag, and in a chat template only `<think>`.
DeepSeek-R1 and its distillations, QwQ, and Qwen's Thinking models are known by name.
"""

import re
from collections.abc import Iterator

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Decl, Deferred, RewardDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import constant_text
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View, place
from forgedsl.source import Span
from forgedsl.syntax import ast

finding = rule(__doc__, "D")
TAG = "<think>"
OPENING = r"<[a-z_]+>"
PREFILLED = r"deepseek-ai/DeepSeek-R1|Qwen/QwQ|Qwen/Qwen3-.*Thinking"


def check(view: View) -> Findings:
    wanted = [*_looking_for(view, TAG)]
    for dataset in view.program.datasets.values():
        span, tag = _last_tag(dataset.settings["prompt"].value)
        reward = next(_looking_for(view, tag), None) if tag else None
        if span is not None and reward is not None:
            yield finding(
                f"the prompt ends with `{tag}`, which `{reward.name}` looks for in the answer",
                span,
                related=(Label(text="looks for it", span=place_of(reward, view)),),
                help=f'look for the closing tag alone: `rl.format_regex("(?s).*</{tag[1:]}.*")`',
            )
    for name in dict.fromkeys(service.ctor_args[0].name for service in view.samplers()):
        model = view.program.models[name]
        if wanted and _prefills(model):
            setting = model.settings["chat_template" if _template(model) else "source"]
            yield finding(
                f"the template ends with `{TAG}`, which `{wanted[0].name}` looks for in the answer",
                place(setting, model),
                related=(Label(text="looks for it", span=place_of(wanted[0], view)),),
                help='look for the closing tag alone: `rl.format_regex("(?s).*</think>.*")`',
            )


def _looking_for(view: View, tag: str) -> Iterator[RewardDecl]:
    """Yield the rewards that want the tag in the completion."""
    for reward in view.program.rewards.values():
        body = reward.body if isinstance(reward.body, Constructor) else None
        if body is not None and body.name == "think_tags":
            tags = {TAG, f"<{body.args['tag']}>"} if body.args["which"] == "any" else {TAG}
            if tag in tags | {"<answer>"}:
                yield reward
        elif body is not None and tag in str(body.args.get("pattern")):
            yield reward
    yield from (found.reward for found in python_rewards(view) if tag in found.once(_begun))


def _begun(found: PythonReward) -> frozenset[str]:
    """Return the tags with which a reward in Python wants the completion to begin."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of
    from forgedsl.types.effects import nodes_of

    texts = []
    for search in body_of(found).searches:
        if search.pattern.startswith("^") or search.method in ("match", "fullmatch"):
            texts.append(re.sub(r"^(\(\?s\))?\^?(\\s\*)?", "", search.pattern))
    for node in nodes_of(found.definition):
        if isinstance(node, python.Call) and getattr(node.func, "attr", "") == "startswith":
            texts += [str(arg.value) for arg in node.args if isinstance(arg, python.Constant)]
    begun = (re.match(OPENING, text) for text in texts)
    return frozenset(tag[0] for tag in begun if tag is not None)


def _last_tag(prompt: object) -> tuple[Span | None, str]:
    """Return the tag that a plain prompt ends with, and the place of the text: the last of
    `"..." + row.x + "..."`."""
    expr = prompt.expr if isinstance(prompt, Deferred) else None
    while isinstance(expr, ast.Binary) and expr.operator == "+":
        expr = expr.right
    text = constant_text(expr, prompt.scope) if isinstance(prompt, Deferred) else None
    text = (text or "").rstrip()
    tag = re.search(OPENING + "$", text) if text.endswith(">") else None
    return (expr.span, tag[0]) if expr is not None and tag is not None else (None, "")


def _template(model: Decl) -> str:
    template = model.settings["chat_template"].value
    return template if isinstance(template, str) else ""


def _prefills(model: Decl) -> bool:
    if template := _template(model):
        return TAG in template.partition("add_generation_prompt")[2]
    source = model.settings["source"].value
    is_hub = getattr(source, "name", "") == "hf"
    return is_hub and re.match(PREFILLED, str(source.args["id"])) is not None
