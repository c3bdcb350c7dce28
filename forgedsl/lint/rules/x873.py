"""X873 head-only: the answer is looked for in the first characters of the response alone.

    found = TAG.findall(response[:300])              # fires, if an answer may have 1024 tokens
    found = TAG.findall(response[-300:])             # silent
    found = TAG.findall(response)                    # silent

A response that reasons before it answers has its answer at the end. If it is longer than the part
that is searched, it scores 0 although it is right, so the policy learns to answer without
reasoning. The rule fires if the part is shorter than half of what `max_tokens` allows, at about
four characters for a token.
"""

from __future__ import annotations

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
CHARACTERS_OF_TOKEN = 4


def check(view: View) -> Findings:
    most = view.max_tokens
    if not (python_rewards(view) or python_environments(view)) or most is None:
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.scores import scorers
    from forgedsl.lint.follow.values import HEAD, meet

    for scorer in scorers(view):
        events = [event for flow in scorer.flows for event in flow.events]
        cuts = [event for event in events if event.kind == "head"]
        compared = any(
            e.kind in ("compare", "difference") and len(e.values) == 2 and meet(*e.values)
            and any(HEAD in value.all for value in e.values)
            for e in events
        )  # fmt: skip
        for event in cuts if compared else ():
            kept = event.values[1].const
            if kept * 2 < most * CHARACTERS_OF_TOKEN:
                yield finding(
                    f"{scorer.what} looks for the answer only in the first {kept} characters, but "
                    f"a response may have {most} tokens",
                    scorer.span,
                    related=(label(view, "the rest is not read", event.file, event.node),),
                    help=f"search the whole response, or its end: `response[-{kept}:]`",
                )
                break
