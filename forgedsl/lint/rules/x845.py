"""X845 observation-cut: the policy sees only the first words of what was fetched for it.

    environment web = env.Search { max_observation = 16 }      # fires: three passages in 16 tokens
    environment web = env.Search { max_observation = 600 }     # silent

    docs = await asyncio.to_thread(self.fetch, query)
    return Step("<information>" + "\\n".join(docs) + "</information>")

What is longer than `max_observation` is cut. Pages and passages of a service are hundreds of tokens
long: with a few tokens the policy reads the beginning of a title, and learns that looking things up
is of no use (ms-swift #4390). The rule fires below 32 tokens, for observations that have the reply
of another machine in them.
"""

from __future__ import annotations

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
LEAST = 32
"""tokens of an observation with a text in it"""


def check(view: View) -> Findings:
    for env in python_environments(view):
        limit = env.env.settings["max_observation"]
        if limit.value >= LEAST:
            continue
        from forgedsl.lint.follow.programs import environment_flows, label
        from forgedsl.lint.follow.values import NET

        for event in (e for m in environment_flows(view, env) for e in m.flow.events):
            if event.kind != "call" or event.name.rpartition(".")[2] != "Step":
                continue
            said = event.argument("observation", 0)
            if said is not None and NET in said.all:
                yield finding(
                    f"`{env.env.name}` shows what it has fetched, and cuts it to {limit.value} "
                    "tokens",
                    place(limit, env.env),
                    related=(label(view, "shown here", event.file, event.node),),
                    help="`max_observation = 512`",
                )
                break
