"""R531 judge-is-policy: a judge has the initial weights of the trained model.

Models recognize their own answers and prefer them (2404.13076), and a policy exploits the errors of
its own weights soonest. Use another model, or a larger one, as judge: it is worth its memory.

    service judge : vllm(policy)                                      # fires: `policy` is trained
    service judge : vllm(grader)                                      # silent

A judge that is synced, so that its grades would move with the policy, is F108.
"""

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of, scorer_of
from forgedsl.ir.program import model_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.services.registry import kind_of

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    services = view.program.services
    trained = {model_of(services[step.receiver]): step for step in view.steps}
    for reward in view.program.rewards.values():
        judge = judge_of(reward) or scorer_of(reward)
        service = services[judge.args["service"]] if judge is not None else None
        if judge is None or service is None or kind_of(service.ctor).remote:
            continue
        if model_of(service) in trained:
            yield finding(
                f"`{service.name}` judges `{reward.name}` with model `{model_of(service)}`, which "
                "is trained here",
                judge.span,
                related=(Label(text="the judge", span=service.name_span),),
                help="judge with another model",
            )
