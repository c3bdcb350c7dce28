"""L439 critic-untrained: advantages come from a critic that no loss trains.

    values = trainer.values(rollout), adv = rl.gae(score, values, rollout.mask)
    trainer.step(batch, loss = rl.dapo)                                # fires: no value loss
    trainer.step(batch, loss = rl.ppo_critic(value_coef = 0.0))        # fires: its weight is 0
    trainer.step(batch, loss = rl.ppo_critic)                          # silent

The value head keeps its random weights, so the advantages are the scores plus noise, which differs
from token to token (1506.02438 fits the values in every step). Add a value loss, or leave the
critic out: `rl.group_norm(score)` needs none. The rule does not report a critic that is another
service.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for asked in view.program.flow:
        if Role.MEASURES not in asked.roles or asked.is_logprobs:
            continue
        losses = [loss for loss in view.losses if loss.step is not None]
        mine = [s for s in losses if s.step is not None and s.step.receiver == asked.receiver]
        if mine and not any("value" in loss.read for loss in mine):
            yield finding(
                f"these values come from a critic that no loss of `{asked.receiver}` trains",
                asked.span,
                related=(Label(text="its loss", span=mine[0].place),),
                help="`loss = rl.ppo_critic`, or an advantage without a critic: "
                "`rl.group_norm(score)`",
            )
