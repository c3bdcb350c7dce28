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
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
RANGE = re.compile(r"\bfrom (\d+)\b[^.\n{}]{0,120}?\bto (\d+)\b", re.IGNORECASE)
OF = r"\s*(?:\(|=|:|means|is|being|for|-|\u2013|\u2014)\s*(?:an?\s+|the\s+)?"
VERY = r"(?:very |completely |entirely |perfectly |fully |extremely |highly )?"
GOOD = (
    rf"{VERY}(?:good|well|clear|helpful|correct|right|excellent|perfect|outstanding|great|best"
    r"|harmless|safe|flawless|polite|accurate|fluent|easy|acceptable|honest|truthful|readable"
    r"|no (?:mistakes?|errors?|problems?|issues?))\b"
)
BAD = (
    rf"{VERY}(?:bad|badly|failure|fail|failing|failed|poor|poorly|unclear|useless|wrong|terrible"
    r"|awful|worst|not at all|insufficient|unhelpful|dangerous|harmful|toxic|unsafe|rude|confusing"
    r"|incomprehensible|unreadable|incorrect|false|inaccurate|unacceptable|nonsense|biased"
    r"|offensive|many (?:mistakes?|errors?|problems?|issues?)"
    r"|(?:it )?(?:cannot|can't|can hardly)\s+be\s+\w+|impossible\s+to\s+\w+"
    r"|(?:very )?hard\s+to\s+\w+"
    r"|not \w+ at all)\b"
)
LOSES = r"(?i)\b(worse|worst|loses|weaker|poorer)\b"
BEST = r"best|excellent|perfect|flawless|outstanding"
"""words for a grade above which there is none"""


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
                f"the prompt of `{reward.name}` asks for {told}, but its scale is "
                f"{' to '.join(map(str, judge.args['scale']))}",
                judge.span,
                help="let the prompt ask for the grades of `scale`, or change `scale`",
            )
        elif reward.name in positive_rewards(view) and _favours_other(judge)[0]:
            own, other = _favours_other(judge)
            yield finding(
                f"the prompt of `{reward.name}` gives {judge.args['scale'][1]} if `{other}` is "
                f"better, but the answer that is scored is `{own}`",
                judge.span,
                help=f"let {judge.args['scale'][1]} mean that `{own}` is better, or exchange "
                "`{response}` and `{other}`",
            )
        elif reward.name in positive_rewards(view) and (best := _is_upside_down(judge)):
            least, most = judge.args["scale"]
            yield finding(
                f"the prompt of `{reward.name}` calls {best}, but the reward is highest for {most}",
                judge.span,
                help=f"describe {most} as the best grade in the prompt",
            )


def _favours_other(judge: Constructor) -> tuple[str, str]:
    """Return the names of both answers in the prompt of a comparison, if its greatest grade is for
    the answer that is not scored; empty texts if not."""
    text, (least, most) = judge.args["prompt"], judge.args["scale"]
    names = [_name_before(text, field) for field in ("response", "other")]
    if not all(names) or names[0] == names[1]:
        return "", ""
    own, other = (rf"(?i:answer|solution|response|text)?\s*\b{name}\b" for name in names)
    rest = r"[^()\d.;,]{0,30}"
    low, high = (
        re.search(rf"(?<![\w.]){grade}{OF}{whose}{rest}(?:\)|[.,;\n]|$)", text)
        for grade, whose in ((least, own), (most, other))
    )
    wins = low is not None and high is not None and not re.search(LOSES, low[0] + high[0])
    return (names[0], names[1]) if wins else ("", "")


def _name_before(text: str, field: str) -> str:
    """Return the letter or number by which a prompt names what stands in `{field}`: `Answer A:`,
    `<a>`; "" without one."""
    before, found, _ = text.partition("{" + field + "}")
    named = re.findall(r"(?i:answer|solution|response|text|option)\s+([A-Z]|\d)\b", before)
    tag = re.search(r"<(\w)>\s*$", before)
    return str(tag[1].upper() if tag is not None else named[-1] if found and named else "")


def _other_range(judge: Constructor) -> str:
    """Return the grades that a prompt asks for, if it says `from A to B` and not the scale."""
    least, most = judge.args["scale"]
    said = [(int(a), int(b)) for a, b in RANGE.findall(judge.args["prompt"])]
    others = [(a, b) for a, b in said if a == least and b != most]
    if (least, most) in said or not others:
        return ""
    return f"grades from {others[0][0]} to {others[0][1]}"


def _is_upside_down(judge: Constructor) -> str:
    """Return the words of a prompt for the least and the greatest grade, if they say that the least
    is the best; "" if they do not."""
    (least, most), text = judge.args["scale"], judge.args["prompt"]
    words = [
        [re.search(rf"(?<![\w.]){grade}{OF}({kind})", text, re.IGNORECASE) for kind in (GOOD, BAD)]
        for grade in (least, most)
    ]
    (good, bad), (better, worse) = words
    is_best = good is not None and re.search(rf"\b({BEST})$", good[1], re.IGNORECASE) is not None
    if not ((good and worse) or (is_best and better is None) or (worse and bad is None)):
        return ""
    told = [f"{least} `{good[1]}`"] if good is not None else []
    told += [f"{most} `{worse[1]}`"] if worse is not None else []
    return " ".join(" and ".join(told).split())
