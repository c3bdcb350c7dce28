"""X812 call-without-timeout: Python code may wait for ever, or blocks all other calls.

A request to a server that does not answer, or a program that does not end, occupies a worker until
the reward's timeout kills it: a slow judge then costs the scores of a whole step. In a coroutine, a
blocking call delays every other call of its process. Give every call a timeout. Of four runs whose
rewards hung, two ended within half an hour (compose-rl #87).

    requests.post(url, json=text)                        # fires
    requests.post(url, json=text, timeout=10)            # silent
    async def score(response): requests.post(...)        # fires: use httpx.AsyncClient
    async def step(self, turn): time.sleep(1)            # fires: of an environment, too
    async def run(self, task, model): OpenAI(...)        # fires: of an agent, AsyncOpenAI is silent

Calls are followed into helper functions, of modules beside the file too; a helper that a coroutine
hands to `asyncio.to_thread` is silent. Nothing is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
VERBS = ("get", "post", "put", "patch", "delete", "head", "request")
WAITS = {
    *(f"requests.{verb}" for verb in VERBS),
    *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")),
    "urllib.request.urlopen",
}
"""calls without a default timeout; httpx is left out, because its default is five seconds"""
JOINS = {
    "queue.Queue().get", "queue.SimpleQueue().get", "queue.LifoQueue().get",
    "queue.PriorityQueue().get", "threading.Event().wait", "threading.Thread().join",
    "threading.Barrier().wait", "threading.Condition().wait", "subprocess.Popen().wait",
    "subprocess.Popen().communicate", "concurrent.futures.ThreadPoolExecutor().submit().result",
    "concurrent.futures.ProcessPoolExecutor().submit().result",
}  # fmt: skip
"""calls that wait for another thread or program"""
BLOCKS = WAITS | JOINS | {"time.sleep", "os.system"} | {f"httpx.{verb}" for verb in VERBS}


CLIENTS = ("openai.OpenAI", "anthropic.Anthropic", "litellm.completion", "requests.Session",
           "httpx.Client")  # fmt: skip
"""clients whose calls block"""
MODELS = CLIENTS[:3]
"""clients of models: a coroutine that creates one is reported, even without a call"""


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import environment_flows, label, reward_flow

    for found in python_rewards(view):
        flow = reward_flow(view, found)
        what, event = _wrong(flow.events if flow is not None else ())
        if event is not None:
            yield finding(
                f"reward `{found.reward.name}` {what.replace('trajectories', 'calls')}",
                place_of(found.reward, view),
                related=(label(view, "here", event.file, event.node),),
                help=_client_help(what)
                or (
                    "await the call, or write a reward without `async`, which runs in threads"
                    if "blocks" in what
                    else "`timeout=10`, below the timeout of the reward"
                ),
            )
    for env in python_environments(view):
        for method in environment_flows(view, env):
            what, event = _wrong(method.flow.events)
            if event is not None:
                yield finding(
                    f"{env.what} `{env.env.name}` {what}",
                    env.env.name_span,
                    related=(label(view, "here", event.file, event.node),),
                    help=_client_help(what)
                    or (
                        "await the call, or write a method without `async`, which runs in a thread"
                        if "blocks" in what
                        else "`timeout=10`: each trajectory that waits holds a thread"
                    ),
                )
                break


def _client_help(what: str) -> str:
    if not what.endswith(tuple(f"`{name}`" for name in CLIENTS)):
        return ""
    return "`openai.AsyncOpenAI`, or `await asyncio.to_thread(...)` around what asks"


def _wrong(events: Iterable[Event]) -> tuple[str, Event | None]:
    """Return the first call that blocks a coroutine, or has no timeout."""
    for event in events:
        if event.kind != "call":
            continue
        client, is_call, _ = event.name.partition("().")
        name = client if is_call else event.name
        known = name in CLIENTS and (is_call or name in MODELS)
        if event.blocking and (event.name in BLOCKS or known):
            return f"blocks all trajectories of its process by `{name}`", event
        if event.name in WAITS and not {"timeout", None} & {*event.keywords}:
            return f"calls `{name}` without a timeout", event
    return "", None
