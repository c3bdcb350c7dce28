"""R526 filter-on-shaped-score: the filter reads a score that includes a term for length.

Dynamic sampling should drop groups that are all right or all wrong. With a term for length, their
scores differ by a token or two, so the filter keeps every group, and a normalised advantage scales
this difference up to that between right and wrong (verl-recipe #125).

    reward brevity(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 512, 0.0, 1.0)
    rubric score { score = correct + 0.1 * brevity, on_truncated = 0.0 }
    kept = rollout.keep(mixed(score(rollout, prompt.target)))                # fires
    kept = rollout.keep(mixed(right))                                        # silent

Filter on the correctness, `mixed(right)` with `right = correct(rollout, prompt.target)`.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.groups import call, probe, scored_by
from forgedsl.lint.rewards import penalizes_all, place_of, score_of, varies_with_length
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for group in view.groups:
        name, step = scored_by(view, group), call(view, group)
        if group.function.kind != "filter" or step is None or name not in view.program.rubrics:
            continue
        rewards = score_of(view, view.program.rubrics[name]).rewards
        shaped = [r for r in rewards.values() if varies_with_length(r, view)]
        keeper = probe(view, group)
        near = keeper.others["all but one score alike"]
        if keeper.size < 2 or len(rewards) < 2 or not shaped:
            continue
        if penalizes_all(shaped[0], view):
            continue  # R522: a penalty that begins later does not differ for short answers
        if keeper([0.0] * len(near))[0] or not keeper(near)[0]:
            continue
        yield finding(
            f"`{shaped[0].name}` differs for nearly all answers, so this filter drops no group",
            step.span,
            related=(Label(text="differs with every length", span=place_of(shaped[0], view)),),
            help="filter on the reward for correctness alone",
        )
