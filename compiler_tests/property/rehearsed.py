"""Three steps of a job in this process: real rows, functions, rewards, losses and optimizer, over a
model that is one table of logits.

    Job --rehearse--> (what each step trained on, its loss, the weights after it)

The model is a table [vocabulary, vocabulary]: what follows a token. It is made of what a real model
is made of (source, architecture, dtype), sampled from as `sampling` says, and trained by the job's
own loss with the optimizer that the service declares.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fake_endpoints import FakeEndpoints, drive

from forgedsl.lower import job as spec
from forgedsl.rows import ROLES
from forgedsl_runtime.data.reader import reader_of
from forgedsl_runtime.data_types import Batch, Prompt, Rollout, Sample, StepResult
from forgedsl_runtime.endpoints import Score, SyncResult
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.modules import load_module
from forgedsl_runtime.rewards.worker import Recipe, load
from forgedsl_runtime.services.endpoints import step_shape
from forgedsl_runtime.tensor_calls import call_on_tensors
from forgedsl_runtime.updates import combine_results, samples_by_update

V = 67
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
RATES = {"none": lambda at: 1.0, "linear": lambda at: 1.0 - at, "cosine": lambda at: (1 - at) ** 2}


def tokens_of(text: str) -> list[int]:
    return [ord(letter) % V for letter in text]


class Letters:
    """A tokenizer: one token a letter."""

    roles = ROLES

    def prompt_text(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        return "".join(f"[{m['role']}]{m['content']}" for m in prompt) + "[assistant]"

    def prompt_tokens(self, prompt: Any, text: str | None = None) -> list[int]:
        return tokens_of(self.prompt_text(prompt) if text is None else text)

    def conversation(self, messages: Any, learn: str) -> tuple[list[int], list[bool]]:
        """Tokens of a chat, and which of them carry loss."""
        tokens: list[int] = []
        mask: list[bool] = []
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        learned = {"all": [*range(len(messages))], "last_turn": answers[-1:]}.get(learn, answers)
        for index, message in enumerate(messages):
            head, body = tokens_of(f"[{message['role']}]"), tokens_of(message["content"] + "|")
            tokens += head + body
            mask += [learn == "all"] * len(head)
            mask += [index in learned] * len(body)
        mask[0] = False  # nothing is before the first token
        return tokens, mask

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(48 + token % 10) for token in tokens)


class Table(torch.nn.Module):
    """What follows each token."""

    def __init__(self, job: spec.Job, service: spec.TitanService) -> None:
        super().__init__()
        model = job.models[service.model]
        made_of = model.model_dump_json(include={"source", "arch", "dtype"})
        if model.source.kind == "local":
            made_of = f"{model.source.sha256} {model.arch} {model.dtype}"
        draw = torch.Generator().manual_seed(random.Random(made_of).randrange(2**31))
        table = torch.randn(V, V, generator=draw, dtype=torch.float64)
        self.dtype = DTYPES[service.dtype]
        lora = service.lora
        self.base = torch.nn.Parameter(table, requires_grad=lora is None)
        self.scale = 0.0 if lora is None else lora.alpha / lora.rank
        rank = 1 if lora is None else lora.rank
        self.down = torch.nn.Parameter(torch.randn(V, rank, generator=draw, dtype=torch.float64))
        self.up = torch.nn.Parameter(torch.zeros(rank, V, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        whole = self.base if not self.scale else self.base + self.scale * self.down @ self.up
        return whole.to(self.dtype).to(torch.float64)


def _optimizer(opt: spec.Optimizer, weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make torch's optimizer of a kind, for matrices."""
    common: dict[str, Any] = {"lr": opt.lr, "momentum": opt.momentum, "nesterov": opt.nesterov}
    if opt.kind == "muon":
        return torch.optim.Muon(
            weights, **common, weight_decay=opt.weight_decay, ns_steps=opt.ns_steps,
            adjust_lr_fn=opt.adjust_lr,
        )  # fmt: skip
    if opt.kind == "sgd":
        return torch.optim.SGD(weights, **common, weight_decay=opt.weight_decay)
    made = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[opt.kind]
    decay = opt.weight_decay if opt.kind == "adamw" else 0.0
    return made(weights, lr=opt.lr, betas=opt.betas, eps=opt.eps, weight_decay=decay)


class Trained:
    """A table with its optimizer."""

    def __init__(self, job: spec.Job, service: spec.TitanService) -> None:
        self.service, self.model = service, Table(job, service)
        self.losses = {
            name: LossFunction.from_job(loss, "torch") for name, loss in job.losses.items()
        }
        opt = service.optimizer
        if opt is not None:
            weights = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = _optimizer(opt, weights)
            steps, warm = job.schedule.steps or 10**9, opt.warmup
            self.rate = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer,
                lambda n: min(1.0, (n + 1) / (warm + 1)) * RATES[opt.decay](min(1.0, n / steps)),
            )

    def logits(self, sample: Sample | Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the tokens that a sample learns from: logits, and the tokens."""
        if isinstance(sample, Rollout):
            ids, start = [*sample.prompt.token_ids, *sample.token_ids], len(sample.prompt.token_ids)
        else:
            ids, start = sample.token_ids, sample.num_prompt
        found = torch.tensor(ids)
        return self.model()[found[start - 1 : -1]] / self.service.temperature, found[start:]

    def logprobs(self, sample: Sample | Rollout) -> list[float]:
        logits, ids = self.logits(sample)
        return logits.log_softmax(-1).gather(1, ids[:, None])[:, 0].tolist()

    def step(self, batch: Batch, name: str) -> StepResult:
        results = [self._update([(name, s), *batch.beside]) for s in samples_by_update(batch)]
        return combine_results(results, batch)

    def _update(self, terms: Sequence[tuple[str, Sequence[Sample]]]) -> StepResult:
        opt = self.service.optimizer
        total, tokens, metrics = torch.zeros(()), 0, {}
        for name, samples in terms:
            out = self._loss(self.losses[name], samples)
            total, metrics = (
                total + out.loss,
                {k: float(v.detach()) for k, v in out.metrics.items()},
            )
            tokens += sum(len(s.token_ids) for s in samples)
        total.backward()
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(weights, opt.max_norm)
        self.optimizer.step()
        self.rate.step()
        self.optimizer.zero_grad()
        if opt.precision == "bf16":
            for weight in weights:
                weight.data = weight.data.to(torch.bfloat16).to(torch.float64)
        return StepResult(
            version=0, loss=float(total.detach()), grad_norm=float(norm), lr=opt.lr, tokens=tokens,
            metrics=metrics, kernel="torch", skipped=False,
        )  # fmt: skip

    def _loss(self, loss: LossFunction, samples: Sequence[Sample]) -> Any:
        rows = [self.logits(sample) for sample in samples]
        counts = [len(ids) for _, ids in rows]
        inputs: dict[str, Any] = {
            "mask": torch.tensor([m for s in samples for m in s.mask], dtype=torch.bool),
            "seq_id": torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts)),
        }
        for field in loss.input_names:
            if field in samples[0].token_fields:
                values = [v for s in samples for v in s.token_fields[field]]
                inputs[field] = torch.tensor(values, dtype=torch.float64)
            elif field in samples[0].sequence_fields:
                values = [s.sequence_fields[field] for s in samples]
                inputs[field] = torch.tensor(values, dtype=torch.float64)
        logits = torch.cat([each for each, _ in rows])
        return loss(logits=logits, labels=torch.cat([ids for _, ids in rows]), **inputs)


class Rehearsed(FakeEndpoints):
    """The services of a job."""

    def __init__(self, job: spec.Job, folder: Path) -> None:
        super().__init__(job)
        self.program = load_module("program", job.program)
        self.readers = {
            name: reader_of(job, name, Letters(), program=self.program, job_dir=folder)  # type: ignore[arg-type]
            for name in job.datasets
        }
        self.titans = {
            name: Trained(job, service)
            for name, service in job.services.items()
            if isinstance(service, spec.TitanService)
        }
        self.functions = load(Recipe.of(job, str(folder), tuple(job.rewards)))
        self.records: list[Any] = []
        self.serving: dict[str, torch.Tensor] = {}

    async def draw(self, node: spec.Node) -> Prompt | None:
        return self.readers[node.target].next_prompt()

    async def seek(self, node: spec.Node, cursor: int) -> None:
        self.readers[node.target].seek(cursor)

    async def batches(self, node: spec.Node) -> Batch | None:
        reader = self.readers[node.target]
        if reader.ended:
            return None
        shape, rows = step_shape(self.job)
        samples = reader.next_batch(rows, shape.seq_len, pack=shape.pack)
        return Batch(samples=samples, cursor=reader.cursor)

    async def sample(self, node: spec.Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        service = self.job.services[node.target]
        assert isinstance(service, spec.VllmService)
        version = self.served[node.target]
        tokens, logprobs, cut = self._sampled(service, node.target, prompt.token_ids, seed)
        return Rollout(
            group=prompt.group, sibling=sibling, prompt=prompt, token_ids=tokens,
            logprobs=logprobs, mask=[True] * len(tokens), text=Letters().decode(tokens),
            truncated=cut, version_min=version, version_max=version, started=0.0, finished=1.0,
        )  # fmt: skip

    def _sampled(
        self, service: spec.VllmService, name: str, prompt: Sequence[int], seed: int
    ) -> tuple[list[int], list[float], bool]:
        s = service.sampling
        draw = torch.Generator().manual_seed(seed % 2**63)
        table = self.serving[name].to(DTYPES[service.dtype]).to(torch.float64)
        if service.kv_dtype == "fp8" or service.extra.get("quantization"):
            table = table.to(torch.float8_e4m3fn).to(torch.float64)
        tokens: list[int] = []
        logprobs: list[float] = []
        last = prompt[-1]
        while len(tokens) < s.max_tokens:
            logits = table[last] / max(s.temperature, 1e-6)
            probs = logits.softmax(-1)
            order = probs.argsort(descending=True)
            keep = probs[order].cumsum(0) - probs[order] < s.top_p
            keep[:1] = True
            if s.top_k is not None:
                keep[s.top_k :] = False
            keep &= probs[order] >= s.min_p * probs.max()
            if len(tokens) < s.min_tokens:
                keep &= order != 0
            kept = torch.zeros(V, dtype=torch.bool)
            kept[order[keep]] = True
            logits = logits.masked_fill(~kept, -torch.inf).log_softmax(-1)
            last = int(torch.multinomial(logits.exp(), 1, generator=draw))
            tokens.append(last)
            logprobs.append(float(logits[last]))
            ended = any(word in Letters().decode(tokens) for word in s.stop)
            if (last % 13 == 0 and len(tokens) >= s.min_tokens) or ended:
                return tokens, logprobs, False
        return tokens, logprobs, True

    async def logprobs(self, node: spec.Node, rollouts: Sequence[Any]) -> list[list[float]]:
        with torch.no_grad():
            return [self.titans[node.target].logprobs(each) for each in rollouts]

    async def score(self, node: spec.Node, rollout: Rollout, target: Any) -> Score:
        rubric = self.job.rubrics.get(node.target)
        if rubric is not None and rollout.truncated and rubric.on_truncated is not None:
            return Score(value=rubric.on_truncated)
        names = (node.target,) if rubric is None else rubric.rewards
        parts_ = {name: await self._reward(name, rollout, target) for name in names}
        if rubric is None:
            return Score(value=parts_[node.target], parts=parts_)
        return Score(value=float(getattr(self.program, rubric.function)(parts_)), parts=parts_)

    async def _reward(self, name: str, rollout: Rollout, target: Any) -> float:
        value = self.functions[name](rollout, target)
        return float(await value if asyncio.iscoroutine(value) else value)

    async def call(self, node: spec.Node, args: dict[str, Any]) -> Any:
        return call_on_tensors(getattr(self.program, node.target), args)

    async def step(self, node: spec.Node, batch: Batch) -> StepResult:
        titan = self.titans[node.target]
        assert node.loss is not None
        result = titan.step(batch, node.loss)
        self.version[node.target] += 1
        result.version = self.version[node.target]
        trained = (
            [asdict(s) for s in batch.samples],
            [(name, [asdict(s) for s in samples]) for name, samples in batch.beside],
        )
        with torch.no_grad():
            self.records.append((trained, result.loss, titan.model().flatten().tolist()))
        return result

    async def sync(self, node: spec.Node, version: int) -> SyncResult:
        with torch.no_grad():
            self.serving[str(node.to)] = self.titans[node.target].model().clone()
        return await super().sync(node, version)


def rehearse(job: spec.Job, folder: Path) -> list[Any]:
    """What each step trained on, its loss, and the weights after it."""
    endpoints = Rehearsed(job, folder)
    drive(job, endpoints)
    return endpoints.records
