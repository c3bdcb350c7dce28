"""R536 judge-without-question: a judge is asked about the question, and is not shown it.

    prompt = "Does it answer the question? 1 to 5: {response}"             # fires
    prompt = "{prompt} Does {response} answer the question? 1 to 5:"       # silent
    prompt = "Is it polite? 1 to 5: {response}"                            # silent: no question

Such a judge can only grade how an answer sounds: an answer to another question gets the same grade,
and the policy learns an answer that fits everywhere. The judge prompts in the paper 2306.05685
contain the question. Put `{prompt}`, or a column such as `{row.question}`, into the judge's prompt.
"""

import re

from forgedsl.hir.judges import judge_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
QUESTION = re.compile(
    r"\b(?:the|this|that|its)\s+(?:\w+\s+)?(question|problem|task|instructions?|request|prompt)\b",
    re.IGNORECASE,
)
REFERENCE = re.compile(
    r"\b(?:compare|agrees?|match(?:es)?|same|equals?|differs?|close|consistent|against)\b[^.?!{}]{0,40}"
    r"\b((?:reference|gold|correct|right|expected|official|true|model)\s+"
    r"(?:answer|solution|result|output|response))\b",
    re.IGNORECASE,
)
SHOWN = ("{prompt}", "{messages}", "{row.")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        judge = judge_of(reward)
        text = judge.args["prompt"] if judge is not None else ""
        named = QUESTION.search(text)
        if named is not None and not any(mark in text for mark in SHOWN):
            yield finding(
                f"the judge of `{reward.name}` is asked about the {named[1].lower()}, and is not "
                "shown it",
                place_of(reward, view),
                help="put `{prompt}` into the prompt of the judge",
            )
        compared = REFERENCE.search(text)
        if compared is not None and not any(mark in text for mark in ("{target}", "{row.")):
            yield finding(
                f"the judge of `{reward.name}` is to compare with the {compared[1].lower()}, and "
                "is not shown it",
                place_of(reward, view),
                help="put `{target}` into the prompt of the judge",
            )
