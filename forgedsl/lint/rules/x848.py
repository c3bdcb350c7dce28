"""X848 another-model: the answer of an agent comes from a model that is not trained.

    final = await AsyncOpenAI().chat.completions.create(model="gpt-4.1-mini", messages=messages)
    return float(answer(final) == task.target)                           # fires
    client = AsyncOpenAI(base_url=model.url, api_key=model.key)
    final = await client.chat.completions.create(model=model.name, messages=messages)
    return float(answer(final) == task.target)                           # silent

The tokens of the policy then get rewards for what another model has answered: such a run learns
nothing, or learns to leave the work to the other model. Ask `model.name` at `model.url`, which are
the policy. A model that only judges, or that plays the user, is silent: its text is not what is
compared with the target. So is a list of messages of both models.
"""

from __future__ import annotations

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    agents = [env for env in python_environments(view) if env.env.body.agent]
    if not agents:
        return
    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import OTHER, POLICY, READS_TARGET, TARGET

    for env in agents:
        for event in (e for m in environment_flows(view, env) for e in m.flow.events):
            if event.kind != "compare" or len(event.values) != 2:
                continue
            one, two = event.values
            if any(
                TARGET in wanted.all and OTHER in said.all and not {READS_TARGET, POLICY} & said.all
                for said, wanted in ((one, two), (two, one))
            ):
                yield finding(
                    f"what agent `{env.env.name}` compares with the target was written by another "
                    "model, not by the policy",
                    env.env.name_span,
                    related=(label(view, "here", event.file, event.node),),
                    help="ask the policy: `model=model.name`, with a client of `model.url`",
                )
                break
