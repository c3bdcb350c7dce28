"""Services that sleep instead of computing, and jobs to run on them on simulated time.

    FakeEndpoints   implements forgedsl_runtime.endpoints; checks the rules the controller must keep
    job, node, ...  small jobs

A completion is a pure function of (seed, version the sampler serves), so that two runs that sample
the same things under the same weights train on equal batches.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.lower.job import Job, Node
from forgedsl_runtime.controller import Controller, Outcome
from forgedsl_runtime.data_types import Batch, Prompt, Rollout, Sample, StepResult
from forgedsl_runtime.endpoints import (
    GROUP,
    DropRollout,
    HeldOutLoss,
    RolloutError,
    Score,
    ServiceFailure,
    SyncResult,
)
from forgedsl_runtime.events import Event, EventLog
from forgedsl_runtime.sim.clock import run

# ---- jobs


def node(name: str, op: str, *inputs: str, target: str = "", **more: Any) -> Node:
    """A node; an input is "edge", "edge.attribute" or "argument=edge"."""
    level = {"sample": "rollout", "score": "rollout", "logprobs": "rollout"}.get(op, "group")
    level = "batch" if op in ("batches", "replay", "step", "sync") else level
    return Node(
        **{
            "id": name,
            "name": name,
            "op": op,
            "target": target,
            "inputs": tuple(_input(i, text) for i, text in enumerate(inputs)),
            "level": level,
            "slots": 64,
            "origin": f"test.forge:{name}",
            **more,
        }
    )


def _input(index: int, text: str) -> spec.Input:
    argument, _, edge = text.rpartition("=")
    edge, _, attribute = edge.partition(".")
    return spec.Input(argument=argument or str(index), edge=edge, attribute=attribute or None)


def math_nodes(prompts: int = 4, n: int = 4, *, reference: bool = True) -> tuple[Node, ...]:
    """Draw, sample, score, advantage, step, sync; as most jobs do."""
    fields = ("adv=adv", "ref=ref_lp") if reference else ("adv=adv",)
    nodes = [
        node("prompt", "draw", target="data", count=prompts),
        node("rollout", "sample", "prompt", target="generator", n=n),
        node("ref_lp", "logprobs", "rollout", target="reference"),
        node("score", "score", "rollout", "prompt.target", target="rubric"),
        node("adv", "call", "r=score", target="centered"),
        node("batch", "replay", "rollout", *fields),
        node("step", "step", "batch", target="trainer", loss="loss"),
        node("sync", "sync", target="trainer", to="generator"),
    ]
    return tuple(each for each in nodes if reference or each.name != "ref_lp")


def job(nodes: Sequence[Node] | None = None, **more: Any) -> Job:
    """A job of `nodes`; other arguments set the schedule, or replace parts of the job."""
    schedule: dict[str, Any] = {"mode": "async", "steps": 6, "prompts": 4, "credits": 8}
    schedule |= {"age_bound": None, "window": 1, "max_policy_age": None, "epochs": None}
    schedule |= {key: more.pop(key) for key in list(more) if key in spec.Schedule.model_fields}
    nodes = tuple(nodes or math_nodes())
    if schedule["age_bound"] is None:
        every = max((each.every for each in nodes if each.op == "sync"), default=1)
        alive = schedule["credits"] + schedule["window"] - 2
        schedule["age_bound"] = alive // schedule["prompts"] + every - 1
    parts: dict[str, Any] = {
        "compiler": "test", "name": "test", "seed": 17, "profile": None, "summary": (),
        "params": {}, "models": {}, "datasets": {}, "rewards": {}, "rubrics": {}, "losses": {},
        "program": "", "evals": {}, "checkpoint": spec.Checkpoint(), "logging": spec.Logging(),
        "launcher": spec.Launcher(), "origins": {"schedule": "test.forge:schedule"},
        "topology": "", "services": _services(nodes),
    }  # fmt: skip
    return Job(**{**parts, **more}, nodes=nodes, schedule=spec.Schedule(**schedule))


def _services(nodes: Sequence[Node], on_nan: str = "stop") -> dict[str, spec.Service]:
    names = {each.target for each in nodes if each.op == "step"}
    return {name: titan(on_nan) for name in names}


def titan(on_nan: str = "stop") -> spec.TitanService:
    return spec.TitanService(
        model="policy",
        mesh=spec.Mesh(name="trainer", device="cpu"),
        dtype="f32",
        optimizer=spec.Optimizer(lr=1e-3, on_nan=on_nan),
        batch=spec.BatchShape(seq_len=64, rows=4),
    )


def evaluation(every: int, service: str = "generator") -> spec.Eval:
    return spec.Eval(
        dataset="data", service=service, score="rubric", every=every,
        sampling=spec.Sampling(max_tokens=4),
    )  # fmt: skip


# ---- services

Latency = Callable[[str], float]


class FakeEndpoints:
    """Every call sleeps `latency(op)` seconds; `fail` may raise before a call answers; `bad` rows
    are passed over.

    Afterwards `trained` holds, per optimizer step, the rows and completions that it saw, and
    `saved` the controller states of the checkpoints.
    """

    def __init__(
        self,
        job: Job,
        *,
        rows: int | None = None,
        bad: Callable[[int], bool] = lambda row: False,
        latency: Latency | None = None,
        jitter: int | None = None,
        fail: Callable[[str, dict[str, Any]], None] = lambda op, about: None,
    ) -> None:
        self.job = job
        self.failures: asyncio.Queue[ServiceFailure] = asyncio.Queue()
        self.trained: list[dict[str, Any]] = []
        self.saved: list[dict[str, Any]] = []
        self.replays: dict[int, bytes | None] = {}
        self.calls: Counter[str] = Counter()
        self.groups: list[list[int]] = []
        self.peak: Counter[str] = Counter()
        self.synced: list[tuple[str, int]] = []
        self.leaves = True
        self._rows = rows
        self._bad = bad
        self._fail = fail
        self._random = random.Random(jitter)
        self._latency = latency or self._jittered if jitter is not None else latency or _instant
        self._position: Counter[str] = Counter()
        self._active: Counter[str] = Counter()
        self._groups: dict[str, Counter[int]] = {}
        self.version: Counter[str] = Counter()
        self.served: Counter[str] = Counter()

    def _jittered(self, op: str) -> float:
        """Mostly short, sometimes very long: the shape of generation times."""
        draw = self._random.random()
        return draw if draw < 0.9 else 50 * draw

    async def _work(self, op: str, **about: Any) -> None:
        self.calls[op] += 1
        await asyncio.sleep(self._latency(op))
        self._fail(op, about)

    @contextmanager
    def _counting(self, name: str, group: int | None = None) -> Iterator[None]:
        """Peak numbers of groups (or calls) at work, per node."""
        groups = self._groups.setdefault(name, Counter())
        groups[group or 0] += 1
        self.peak[name] = max(self.peak[name], len(groups))
        try:
            yield
        finally:
            groups[group or 0] -= 1
            groups += Counter()

    # -- sources

    async def draw(self, node: Node) -> Prompt | None:
        await self._work("draw", node=node.name)
        row = self._next(node)
        if row is None:
            return None
        return Prompt(
            group=-1, row=row, text=f"row {row}", token_ids=[row % 97, 1], target=row % 2,
            cursor=row + 1, level="even" if row % 2 == 0 else None,
        )  # fmt: skip

    async def batches(self, node: Node) -> Batch | None:
        await self._work("batches", node=node.name)
        row = self._next(node)
        if row is None:
            return None
        sample = Sample(token_ids=[row, 2, 3], num_prompt=1, mask=[True, True])
        return Batch(samples=[sample], cursor=row + 1)

    async def pairs(self, node: Node) -> list[Rollout] | None:
        await self._work("pairs", node=node.name)
        row = self._next(node)
        if row is None:
            return None
        prompt = Prompt(group=-1, row=row, text="", token_ids=[row], target=None, cursor=row + 1)
        return [completion(prompt, -1, sibling, row + sibling, 0) for sibling in (0, 1)]

    async def seek(self, node: Node, cursor: int) -> None:
        await self._work("seek", node=node.name)
        self._position[node.name] = cursor

    def _next(self, node: Node) -> int | None:
        while self._bad(self._position[node.name]):
            self._position[node.name] += 1
        row = self._position[node.name]
        if self._rows is not None and row >= self._rows:
            return None
        self._position[node.name] += 1
        return row

    # -- group nodes

    async def sample(self, node: Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        origin = prompt.prompt if isinstance(prompt, Rollout) else prompt
        version = self.served[node.target]
        with self._counting(node.name, origin.group):
            await self._work("sample", node=node.name, group=origin.group, sibling=sibling)
        rollout = completion(origin, origin.group, sibling, seed, version)
        rollout.version_max = self.served[node.target]
        return rollout

    async def logprobs(self, node: Node, rollouts: Sequence[Any]) -> list[list[float]]:
        with self._counting(node.name, getattr(rollouts[0], "group", None)):
            await self._work("logprobs", node=node.name)
        return [[-0.5] * len(each.mask) for each in rollouts]

    async def score(self, node: Node, rollout: Rollout, target: Any) -> Score:
        with self._counting(node.name, rollout.group):
            await self._work("score", node=node.name, group=rollout.group, sibling=rollout.sibling)
        value = float(sum(rollout.token_ids) % 5) / 4
        return Score(value=value, parts={"correct": value})

    async def call(self, node: Node, args: dict[str, Any]) -> Any:
        await self._work("call", node=node.name)
        if node.level == "batch":
            self.groups.append(args.pop(GROUP))
        return FUNCTIONS[node.target](*args.values())

    async def weight(self, node: Node, results: dict[str, float]) -> float:
        return float(FUNCTIONS[str(node.weight)](**results))

    # -- trainer

    async def step(self, node: Node, batch: Batch) -> StepResult:
        assert self._active["step"] == 0, "two steps at once"
        self._active["step"] += 1
        work = self._work("step", node=node.name, step=len(self.trained) + 1)
        self._step = asyncio.ensure_future(work)
        await asyncio.wait([self._step])
        self._active["step"] -= 1
        if self._step.cancelled():
            return StepResult(
                version=0, loss=0.0, grad_norm=0.0, lr=0.0, tokens=0, metrics={}, kernel="",
                left=True,
            )  # fmt: skip
        self._step.result()
        self.version[node.target] += 1
        self.trained.append(
            {
                "groups": batch.groups,
                "samples": [asdict(sample) for sample in batch.samples],
                "ages": batch.ages,
                "rewards": batch.rewards,
                "beside": [(loss, len(samples)) for loss, samples in batch.beside],
            }
        )
        return StepResult(
            version=self.version[node.target], loss=0.5, grad_norm=1.0, lr=1e-3,
            tokens=sum(len(s.token_ids) for s in batch.samples),
            metrics={"entropy": 1.5, "clip_frac": 0.1}, kernel="fake",
        )  # fmt: skip

    async def abandon_step(self, node: Node) -> bool:
        return self.leaves and self._step.cancel()

    async def sync(self, node: Node, version: int) -> SyncResult:
        assert version == self.version[node.target], "weights that are gone"
        assert self._active[f"sync {node.to}"] == 0, "two transfers at once"
        self._active[f"sync {node.to}"] += 1
        await self._work("sync", node=node.name, version=version)
        self._active[f"sync {node.to}"] -= 1
        self.served[node.to or ""] = version
        self.synced.append((node.to or "", version))
        return SyncResult(bytes=1, transport="fake", seconds=0.0)

    async def eval_prompts(self, name: str) -> list[Prompt]:
        return [Prompt(group=-1, row=row, text="", token_ids=[row], target=0) for row in range(3)]

    async def evaluate_loss(self, name: str) -> HeldOutLoss:
        service = self.job.evals[name].service
        version = self.version[service]
        await self._work("eval loss", name=name)
        assert version == self.version[service], "a step went on meanwhile"
        return HeldOutLoss(value=10.0 - version, reports={"nll": 1.0}, samples=4)

    async def evaluate_sample(self, name: str, prompt: Prompt, sibling: int, seed: int) -> Rollout:
        version = self.served[self.job.evals[name].service]
        await self._work("eval", name=name)
        assert version == self.served[self.job.evals[name].service], "the version is not pinned"
        return completion(prompt, -1, sibling, seed, version)

    async def evaluate_score(self, name: str, rollout: Rollout) -> Score:
        await self._work("eval score", name=name)
        version = self.served[self.job.evals[name].service]
        assert version == rollout.version_min, "the version is not pinned"
        return Score(value=version)

    async def save(
        self,
        step: int,
        controller_state: dict[str, Any],
        taken: asyncio.Event,
        replay: bytes | None = None,
    ) -> str:
        await self._work("save", step=step)
        self.saved.append(controller_state)
        self.replays[step] = replay
        return f"checkpoints/step-{step}"

    async def amend(self, step: int, controller_state: dict[str, Any]) -> None:
        self.saved = [*(s for s in self.saved if s["step"] != step), controller_state]

    async def health(self) -> dict[str, str]:
        return {"generator": "ok"}

    def restarted(self, state: dict[str, Any], **more: Any) -> FakeEndpoints:
        """Services of a new process that loaded this checkpoint."""
        fresh = FakeEndpoints(self.job, **{"rows": self._rows, "bad": self._bad} | more)
        fresh.version.update(state["versions"])
        return fresh


def _instant(op: str) -> float:
    return 0.0


def completion(prompt: Prompt, group: int, sibling: int, seed: int, version: int) -> Rollout:
    draw = random.Random(f"{seed} {version}")
    tokens = [draw.randrange(50) for _ in range(draw.randint(1, 4))]
    return Rollout(
        group=group, sibling=sibling, prompt=prompt, token_ids=tokens,
        logprobs=[-1.0] * len(tokens), mask=[True] * len(tokens), text="x", truncated=False,
        version_min=version, version_max=version, started=0.0, finished=1.0,
    )  # fmt: skip


def centered(scores: list[float], *more: Any) -> list[float]:
    mean = sum(scores) / len(scores)
    return [score - mean for score in scores]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "centered": centered,
    "mixed": lambda scores: max(scores) > min(scores),
    "most": lambda scores: sum(scores) * 4 % 7 != 0,
    "never": lambda scores: False,
    "total": lambda scores, *more: sum(scores),
}


# ---- runs


def drive(
    job: Job,
    endpoints: FakeEndpoints,
    *,
    prepare: Callable[[Controller], None] = lambda controller: None,
    **more: Any,
) -> tuple[Outcome, list[Event]]:
    """Run a job to its end on virtual time; `prepare` sees the controller before it starts."""

    async def main() -> tuple[Outcome, list[Event]]:
        seen: list[Event] = []
        events = EventLog()
        events.subscribe(seen.append)
        controller = Controller(job, endpoints, events, **more)
        prepare(controller)
        return await controller.run(), seen

    found: tuple[Outcome, list[Event]] = run(main())
    return found


def metrics(events: list[Event]) -> list[Event]:
    return [event for event in events if event["kind"] == "metrics"]


__all__ = [
    "DropRollout", "FakeEndpoints", "RolloutError", "ServiceFailure", "drive", "evaluation",
    "job", "math_nodes", "metrics", "node", "run", "titan",
]  # fmt: skip
