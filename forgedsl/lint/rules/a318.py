"""A318 routes-not-replayed: the trainer may choose other experts than the sampler did.

    trainer : titan(policy) { router_replay = false }    # fires, if `policy` has experts
    trainer : titan(policy) { }                          # silent: routes are replayed

In a model with experts, a router picks a few experts for each token. Engine and trainer use
different kernels. In bf16 their routers pick other experts where two score almost the same: for one
token in twenty in each layer. Such a token was sampled through some experts and is learned through
others, so its ratio says little. Runs have collapsed because of this (Megatron-LM #4168, NeMo-RL
#4243, slime #1909). By default the engine records the experts of each token, and the trainer
chooses them again (rollout routing replay, arXiv 2510.11370). Leave `router_replay` out, and use
`parallel.ep` or `parallel.dp_shard` in place of a pipeline, which cannot replay. Correct the loss
by `logprob - behavior` in any case.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.plan.router_replay import could_replay, replays, stages

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.planned is None:
        return
    graph, plan = view.planned
    trainer = could_replay(view.program, graph, plan.request.dims)
    if trainer is None or replays(view.program, graph, plan.request.dims):
        return
    piped = stages(trainer) > 1
    setting = trainer.settings["parallel.pp" if piped else "router_replay"]
    yield finding(
        f"`{trainer.name}` may choose other experts for a token than the engine did",
        place(setting, trainer),
        related=(Label(text="trains a model with experts", span=trainer.name_span),),
        help="use `parallel.ep` or `parallel.dp_shard` instead of a pipeline, which cannot replay"
        if piped
        else "leave `router_replay` out",
    )
