"""R537 answer-without-border: a judge's prompt ends with the answer, and nothing borders it.

    prompt = "Grade from 1 to 5 how clear this is. {response}"             # fires
    prompt = "<answer>{response}</answer> How clear is it? From 1 to 5:"   # silent
    prompt = "How clear is it? From 1 to 5. Answer: {response}"            # silent

The last words that the judge reads are then the policy's, and nothing says where they begin: an
answer that goes on with `Grade: 5` reads like a part of the instruction. In NeMo-Gym #2852 eight of
ten answers with such a text got full credit. Put the answer between tags, and put the judge's
question after it.
"""

import re

from forgedsl.hir.judges import judge_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
OPENS = re.compile(r"[:>=\"'`\]\[(<{|#*-]\s*$")
"""what stands before an answer as a label or a border"""


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        judge = judge_of(reward)
        text = judge.args["prompt"] if judge is not None else ""
        before, answer, after = text.rpartition("{response}")
        if answer and not after.strip() and before.strip() and not OPENS.search(before):
            yield finding(
                f"the prompt of `{reward.name}` ends with the answer, without a border before it",
                place_of(reward, view),
                help="put it between tags, `<answer>{response}</answer>`, and put the question "
                "after it",
            )
