"""R530 judge-scale: the judge's prompt asks for grades on another scale than the reward declares.

The reward reads grades on its declared `scale`, whatever the prompt asks for. If the prompt asks
for 1 to 10 and the scale is 1 to 5, all good answers get the maximum. In agent-eval-harness #185
the prompt asked for 0 to 2 and the scale was 1 to 5, so two of the three grades became 0. State the
declared scale in the prompt.

    reward style = judge.score(prompt = "{response} From 1 to 10:", scale = [1, 5])     # fires
    reward style = judge.score(prompt = "{response} From 1 to 5:", scale = [1, 5])      # silent
"""

import re

from forgedsl.hir.judges import judge_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        judge = judge_of(reward)
        if judge is None:
            continue
        said = re.findall(r"(?<![\w{.])\d+(?![\w}])", judge.args["prompt"])
        missing = [grade for grade in judge.args["scale"] if str(grade) not in said]
        if missing:
            least, most = judge.args["scale"]
            listed = " and ".join(f"`{grade}`" for grade in missing)
            yield finding(
                f"the scale of `{reward.name}` is {least} to {most}, and its prompt does not "
                f"mention {listed}",
                judge.span,
                help="say in the prompt what the least and the greatest grade mean",
            )
