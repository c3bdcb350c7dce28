"""An agent, its endpoint and the controller's side of a trajectory in one process, for tests.

agent (a coroutine of the test) --HTTP--> Endpoint --> AgentPlay --> Engine, which is scripted
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from forgedsl.agent import Model
from forgedsl.environment import Task
from forgedsl.lower import job as spec
from forgedsl_runtime.agents.endpoint import Endpoint
from forgedsl_runtime.agents.play import AgentDriver
from forgedsl_runtime.agents.session import Event, Session, Terms
from forgedsl_runtime.agents.tree import Tree
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.environments.bridge import Bridge
from forgedsl_runtime.environments.driver import Limits
from forgedsl_runtime.environments.worker import Reply

TOKENIZER = Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"
EOS = 2
PLAIN = (
    "{% if tools %}[{{ tools | length }}]{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'assistant' %}={% endif %}{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] }}{% endfor %}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)
DROPS = PLAIN.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
"""shows no thoughts of earlier turns, as templates of thinking models do"""

USER = "1+1"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '3<tool_call>{"name": "f", "arguments": {"b": 2, "a": [1]}}</tool_call>'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass(slots=True, kw_only=True)
class Done:
    """What an engine gives back."""

    token_ids: list[int]
    text: str
    truncated: bool = False
    versions: tuple[tuple[int, int], ...] = ()
    started: float = 1.0
    finished: float = 2.0
    running: int = 0
    routes: None = None

    @property
    def logprobs(self) -> list[float]:
        return [-0.5] * len(self.token_ids)

    @property
    def mask(self) -> list[bool]:
        return [True] * len(self.token_ids)


@dataclass
class Engine:
    """Answers with `texts` in turn. Its tokens are not those of the text, as a model may sample
    them: 10, 11, ... and the end of a turn."""

    texts: list[str] = field(default_factory=lambda: ["5"])
    cut: bool = False
    gate: asyncio.Event | None = None
    """answers wait for it"""
    seen: list[list[int]] = field(default_factory=list)
    asked: list[spec.Sampling] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    cancelled: int = 0

    async def __call__(self, token_ids: list[int], sampling: spec.Sampling, seed: int) -> Done:
        number = len(self.seen)
        self.seen.append(list(token_ids))
        self.asked.append(sampling)
        self.seeds.append(seed)
        try:
            await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        tokens = [10 + number % 8, 10] + ([] if self.cut else [EOS])
        text = self.texts[number % len(self.texts)]
        versions = ((number, len(tokens)),)
        return Done(token_ids=tokens, text=text, truncated=self.cut, versions=versions)


class Client:
    """What an agent of a test asks with."""

    def __init__(self, model: Model, http: aiohttp.ClientSession) -> None:
        self.model, self.http = model, http

    async def post(self, body: Any, *, path: str = "/chat/completions", **headers: str) -> Any:
        """(status, parsed body)"""
        given = {"Authorization": f"Bearer {self.model.key}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(self.model.url + path, headers=given, **sent) as response:
            if response.content_type == "text/event-stream":
                return response.status, (await response.read()).decode()
            return response.status, await response.json()

    async def chat(self, *messages: Any, **more: Any) -> Any:
        """The first choice's message."""
        given = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        status, body = await self.post({"model": "m", "messages": given, **more})
        assert status == 200, body
        return body["choices"][0]["message"]


Run = Callable[[Client, Task], Awaitable[Any]]


class Here:
    """A session of play.AgentSession whose agent is a coroutine of the test."""

    def __init__(self, endpoint: Endpoint, run: Run, bridge: Bridge, rewrites: bool) -> None:
        self._endpoint, self._run = endpoint, run
        self._bridge, self._rewrites = bridge, rewrites
        self.told: dict[str, str] = {}
        self.working: asyncio.Task[None] | None = None

    async def begin(self, task: Task, seed: int, limits: Limits) -> None:
        terms = Terms(
            model="policy", sampling=limits.sampling, max_row_tokens=limits.max_row_tokens,
            rewrites=self._rewrites,
        )  # fmt: skip
        tree = Tree(self._bridge, rewrites=self._rewrites)
        self.session = Session(terms, tree, self.told.__setitem__)
        self._endpoint.begin(self.session)
        self.working = asyncio.create_task(self._work(task))

    async def _work(self, task: Task) -> None:
        model = Model(url=self._endpoint.url, key=self.session.key, name="policy")
        async with aiohttp.ClientSession() as http:
            try:
                reply = Reply(value=await self._run(Client(model, http), task) or {})
            except Exception as error:
                reply = Reply(error=f"{type(error).__name__}: {error}")
        self._endpoint.end(self.session)
        self.session.ended(reply)

    async def events(self) -> list[Event]:
        return await self.session.events()

    def answer(self, *given: Any) -> None:
        self.session.answered(*given)

    def refuse(self, *given: Any) -> None:
        self.session.refused(*given)

    def close(self) -> None:
        self._endpoint.end(self.session)
        if self.working is not None:
            self.working.cancel()


def bridge(template: str = PLAIN, form: str | None = None) -> Bridge:
    return Bridge(ChatTokenizer.load(str(TOKENIZER), template, form))


def ids(text: str) -> list[int]:
    return bridge().ids(text)


def environment(**more: Any) -> spec.Environment:
    given: dict[str, Any] = {
        "type_name": "A", "path": "a.py", "sha256": "", "parts": ("solved",), "agent": True,
        "deadline": 20.0,
    }  # fmt: skip
    return spec.Environment(**given | more)


@dataclass
class Played:
    """A trajectory that was played: the rollout or the error, and what was told on the way."""

    rollout: Any
    error: str
    failed: list[str]
    told: dict[str, str]
    engine: Engine


def play(
    run: Run,
    engine: Engine | None = None,
    *,
    template: str = PLAIN,
    form: str | None = None,
    of: spec.Environment | None = None,
    **limits: Any,
) -> Played:
    """Play one trajectory of an agent."""
    made = bridge(template, form).load_parser()
    return asyncio.run(_play(run, engine or Engine(), made, of or environment(), limits))


async def _play(
    run: Run, engine: Engine, made: Bridge, of: spec.Environment, limits: dict[str, Any]
) -> Played:
    endpoint, failed = Endpoint(), []
    await endpoint.start()
    sessions: list[Here] = []

    def begin() -> Here:
        sessions.append(Here(endpoint, run, made, of.history == "template"))
        return sessions[-1]

    driver = AgentDriver(of, made, begin, lambda cause, prompt: failed.append(cause))
    prompt = Prompt(
        group=7, row=3, text="1+1=", token_ids=ids("1+1="), target="2",
        messages=[{"role": "user", "content": "1+1"}],
    )  # fmt: skip
    given: dict[str, Any] = {"sampling": spec.Sampling(max_tokens=8), "turns": None}
    given |= {"max_row_tokens": 200} | limits
    rollout, error = None, ""
    try:
        rollout = await driver.play(engine, prompt, 5, 11, Limits(**given))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    for session in sessions:
        if session.working is not None:
            with suppress(asyncio.CancelledError):
                await session.working
    await endpoint.close()
    return Played(rollout, error, failed, sessions[-1].told if sessions else {}, engine)
