"""R532 thinking-judge: the judge is a reasoning model, whose first tokens are no grade.

    service judge : openai("deepseek-reasoner") { url = "..." }                        # fires
    service judge : openai("deepseek-reasoner") { url = "...", max_tokens = 4096 }     # silent
    prompt = "Explain step by step, then grade: {response}="       # fires, for an engine of the run
    model grader { source = hf("Qwen/QwQ-32B") }                                       # fires
    model grader { source = hf("Qwen/Qwen2.5-7B-Instruct") }                           # silent

Behind an endpoint, thoughts count as tokens of the answer: with `max_tokens = 64`, the default, the
answer ends before its grade, and the reward fails or is the same for all (agent-native #4861). An
engine of the run reads the grade from the distribution of the first token, where such a model has
`<think>`: the grade is noise. Allow an endpoint some thousand tokens; take another model for an
engine. The rule knows such models by name.
"""

import re

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of
from forgedsl.ir.program import Decl, model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View, place
from forgedsl.services.registry import kind_of

finding = rule(__doc__, "W")
THINKS = re.compile(
    r"(^|/)(o[134](-|$)|gpt-5(?!.*chat)|deepseek-r1|deepseek-reasoner|qwq|.*thinking|.*reasoner"
    r"|magistral|glm-z1|gpt-oss|.*-r1-distill)",
    re.IGNORECASE,
)
ENOUGH = 512
"""tokens of an answer in which a short thought and a grade have room"""


ASKED = re.compile(
    r"(?:^|[.!:;\n]\s*|\b(?:first|please|carefully)[ ,]+)"
    r"(?P<do>explain|reason|think|justify|give reasons)\b(?![^.\n]*\?)",
    re.IGNORECASE,
)
"""how a prompt asks a judge for reasons before the grade"""


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        judge = judge_of(reward)
        if judge is None:
            continue
        service = view.program.services[judge.args["service"]]
        name = _name(view, service)
        related = (Label(text="its grade is read here", span=judge.span),)
        if not THINKS.search(name):
            asked = ASKED.search(judge.args["prompt"])
            remote = kind_of(service.ctor).remote
            if asked and not (remote and service.settings["max_tokens"].value >= ENOUGH):
                yield finding(
                    f"`{reward.name}` asks its judge to {asked['do'].lower()} first, and the grade "
                    + ("has to come within a few tokens" if remote else "is read from one token"),
                    place_of(reward, view),
                    related=related,
                    help=f"`max_tokens = {2 * ENOUGH}` of `{service.name}`, and the grade last"
                    if remote
                    else "ask for the grade alone: an engine of the run gives no other text",
                )
            continue
        if not kind_of(service.ctor).remote:
            yield finding(
                f"`{name}` begins with `<think>`, and a grade is read from the first token of "
                f"`{service.name}`",
                service.name_span,
                related=related,
                help="judge with a model that answers at once, such as an Instruct model",
            )
        elif service.settings["max_tokens"].value < ENOUGH:
            limit = service.settings["max_tokens"]
            yield finding(
                f"`{name}` thinks before it answers, and is cut off after {limit.value} tokens",
                place(limit, service),
                related=related,
                help="`max_tokens = 4096`",
            )


def _name(view: View, service: Decl) -> str:
    """Return the name of a judge's model: that of the endpoint, or of the hub."""
    model = view.program.models.get(model_of(service))
    if model is None:
        return model_of(service)
    source = model.settings["source"].value
    return str(source.args["id"]) if getattr(source, "name", "") == "hf" else ""
