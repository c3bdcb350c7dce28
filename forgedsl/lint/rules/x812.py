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

The file is read with its imports resolved, never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.types.effects import Use

finding = rule(__doc__, "W")
VERBS = ("get", "post", "put", "patch", "delete", "head", "request")
WAITS = {
    *(f"requests.{verb}" for verb in VERBS),
    *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")),
    "urllib.request.urlopen",
}
"""calls without a default timeout; httpx is left out, because its default is five seconds"""
BLOCKS = WAITS | {"time.sleep"} | {f"httpx.{verb}" for verb in VERBS}


CLIENTS = ("openai.OpenAI", "anthropic.Anthropic", "litellm.completion")
"""clients of models whose calls block"""


def check(view: View) -> Findings:
    for found in python_rewards(view):
        for use in found.uses:
            what = _wrong(found, use)
            if what:
                yield finding(
                    f"reward `{found.reward.name}` {what}",
                    place_of(found.reward, view),
                    related=(Label(text="here", span=found.span(use)),),
                    help="an awaited call, or a reward without `async`: it gets threads"
                    if "blocks" in what
                    else "`timeout=10`, below the timeout of the reward",
                )
                break
    for env in python_environments(view):
        what, node = _in_environment(env)
        if node is not None:
            yield finding(
                f"{env.what} `{env.env.name}` {what}",
                env.env.name_span,
                related=(Label(text="here", span=env.at(node)),),
                help="`openai.AsyncOpenAI`, or `await asyncio.to_thread(...)` around what asks"
                if what.endswith(tuple(f"`{name}`" for name in CLIENTS))
                else "an awaited call, or a method without `async`: it gets a thread"
                if "blocks" in what
                else "`timeout=10`: each trajectory that waits holds a thread",
            )


def _in_environment(env: PythonClass) -> tuple[str, python.AST | None]:
    import ast as python

    for method in env.methods.values():
        full = env.names(method)
        awaits = isinstance(method, python.AsyncFunctionDef)
        inner = {each for f in _functions_in(method) for each in python.walk(f)}
        for node in python.walk(method):
            name = full(node.func) if isinstance(node, python.Call) else ""
            if (name in BLOCKS or name in CLIENTS) and awaits and node not in inner:
                return f"blocks all trajectories of its process by `{name}`", node
            keywords = {word.arg for word in getattr(node, "keywords", ())}
            if name in WAITS and not {"timeout", None} & keywords:
                return f"calls `{name}` without a timeout", node
    return "", None


def _functions_in(method: python.AST) -> Iterator[python.AST]:
    """Yield the synchronous functions inside of a method, which may run on threads."""
    import ast as python

    for node in python.walk(method):
        if isinstance(node, python.FunctionDef | python.Lambda) and node is not method:
            yield node


def _wrong(found: PythonReward, use: Use) -> str:
    if type(found.definition).__name__ == "AsyncFunctionDef" and use.name in BLOCKS:
        return f"blocks all calls of its process by `{use.name}`"
    waits = use.name in WAITS and not {"timeout", None} & {*use.keywords}
    return f"calls `{use.name}` without a timeout" if waits else ""
