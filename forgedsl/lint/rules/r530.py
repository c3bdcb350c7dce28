"""R530 judge-scale: the judge's prompt asks for grades on another scale than the reward declares.

The reward reads grades on its declared `scale`, whatever the prompt asks for. If the prompt asks
for 1 to 10 and the scale is 1 to 5, all good answers get the maximum. In agent-eval-harness #185
the prompt asked for 0 to 2 and the scale was 1 to 5, so two of the three grades became 0. State the
declared scale in the prompt. The rule also reports a prompt in which the least grade is the best,
like in some schools: the reward is highest for the greatest grade of the scale.

    reward style = judge.score(prompt = "{response} From 1 to 10:", scale = [1, 5])     # fires
    reward style = judge.score(prompt = "{response} From 1 to 5:", scale = [1, 5])      # silent
    prompt = "From 1 (poor) over 5 (fair) to 10 (good):", scale = [1, 5]                # fires
    prompt = "From 1 (very good) to 5 (poor):", scale = [1, 5]                          # fires
"""

import re

from forgedsl.hir.judges import judge_of
from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import positive_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
RANGE = re.compile(r"\bfrom (\d+)\b[^.\n{}]{0,120}?\bto (\d+)\b", re.IGNORECASE)
OF = r"\s*(?:\(|=|:|means|is)\s*(?:an?\s+)?"
GOOD = (
    r"(?:very |completely |entirely )?(?:good|well|clear|helpful|correct|right|excellent|perfect"
    r"|outstanding|great|best)\b"
)
BAD = (
    r"(?:very |completely |entirely )?(?:bad|badly|failure|fail|failing|failed|poor|poorly|unclear"
    r"|useless|wrong|terrible"
    r"|awful|worst|not at all|insufficient|unhelpful)\b"
)


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
                help="say in the prompt what the lowest and the highest grade mean",
            )
        elif told := _other_range(judge):
            yield finding(
                f"the prompt of `{reward.name}` asks for {told}, and its scale is "
                f"{' to '.join(map(str, judge.args['scale']))}",
                judge.span,
                help="ask for the grades of `scale`, or declare the scale of the prompt",
            )
        elif reward.name in positive_rewards(view) and (best := _is_upside_down(judge)):
            least, most = judge.args["scale"]
            yield finding(
                f"the prompt of `{reward.name}` calls {least} `{best[0]}` and {most} `{best[1]}`, "
                f"but the reward is highest for {most}",
                judge.span,
                help=f"let {most} be the best grade in the prompt",
            )


def _other_range(judge: Constructor) -> str:
    """Return the grades that a prompt asks for, if it says `from A to B` and not the scale."""
    least, most = judge.args["scale"]
    said = [(int(a), int(b)) for a, b in RANGE.findall(judge.args["prompt"])]
    others = [(a, b) for a, b in said if a == least and b != most]
    if (least, most) in said or not others:
        return ""
    return f"grades from {others[0][0]} to {others[0][1]}"


def _is_upside_down(judge: Constructor) -> tuple[str, str] | None:
    """Return the words of a prompt for the least and the greatest grade, if they say that the least
    is the best; None if they do not."""
    (least, most), text = judge.args["scale"], judge.args["prompt"]
    best = re.search(rf"(?<![\w.]){least}{OF}({GOOD})", text, re.IGNORECASE)
    worst = re.search(rf"(?<![\w.]){most}{OF}({BAD})", text, re.IGNORECASE)
    return (best[1], worst[1]) if best and worst else None
