"""R543 untrained-head: scores come from a value head that was never trained.

    model grader { source = hf("Qwen/Qwen3-8B") }
    service judge : titan(value_head(grader)) {}
    reward liked = judge.score()                     # fires: all scores are 0
    model grader { source = hf("Skywork/Skywork-Reward-V2-Qwen3-8B") }       # silent

A checkpoint without a value head gets one that is 0, so that all answers score alike and no group
has a gradient. Name a reward model, train the head in the flow, or let the model judge by a prompt:
`judge.score(prompt = ..., scale = [0, 9])`. The rule knows the general models of some publishers by
their names, and is silent for names that say `reward`, `rm`, `score` or the like.
"""

import re

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import SCORER
from forgedsl.ir.program import Constructor, model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
GENERAL = re.compile(
    r"(Qwen|meta-llama|google|mistralai|HuggingFaceTB|microsoft|deepseek-ai|ibm-granite|openai"
    r"|allenai|EleutherAI|tiiuae|01-ai)/",
    re.IGNORECASE,
)
"""publishers whose models are language models without a value head, if their names do not say so"""
SCORES = re.compile(
    r"reward|(^|[-_/])(o|p)?rm([-_]|$)|scor|rank|critic|judge|prefer|classif|verif|value"
    r"|guard|embed",
    re.IGNORECASE,
)


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        body = reward.body
        if not isinstance(body, Constructor) or body.name != SCORER:
            continue
        service = view.program.services.get(body.args["service"])
        if service is None or model_of(service) in view.trained:
            continue
        model = view.program.models[model_of(service)]
        source = model.settings["source"].value
        name = str(source.args["id"]) if getattr(source, "name", "") == "hf" else ""
        if GENERAL.match(name) and not SCORES.search(name):
            yield finding(
                f"reward `{reward.name}` is 0 for every answer: `{name}` has no value head, and a "
                "new head starts at 0",
                place_of(reward, view),
                related=(Label(text="the model", span=model.name_span),),
                help="name a reward model, such as `Skywork/Skywork-Reward-V2-Qwen3-8B`, or let a "
                "`vllm` service judge: `judge.score(prompt = ..., scale = [0, 9])`",
            )
