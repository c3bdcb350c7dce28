"""Scores given by a service of the run. A judge's score is the expected grade under its next-token
distribution.

    rollout --template--> prompt --engine--> log-probs of the grades --> sum of p(g) g / sum of p(g)

Nothing is sampled, so equal texts get equal grades. Special tokens of the judge that occur in an
inserted text are broken up. Otherwise an answer could end the user's turn of the judge's prompt.

    rollout --reward model--> values of its tokens --> value of the last
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.rewards.inputs import RequestCache, mean_grade, questions
from forgedsl_runtime.rewards.worker import Item, Outcome
from forgedsl_runtime.services.generator import GeneratorClient
from forgedsl_runtime.services.trainer import TrainerClient
from forgedsl_runtime.worker_process import timeout_message

MAX_CALLS = 1024
"""calls of a reward model in progress, at most"""
LEAST_MASS = 0.01
"""least total probability of all grades; below it, the judge's answer is no grade"""


class NoGrade(Exception):
    """A judge gave no grade for a prompt."""


class ServiceReward(ABC):
    """Computes one reward by a service of the run: a judge, or a reward model. It has the interface
    of a reward pool."""

    def __init__(self, reward: spec.Reward, places: int) -> None:
        self._reward = reward
        self._slots = asyncio.Semaphore(places)

    async def submit(self, item: Item, *, first: bool = False) -> list[Outcome]:
        """Return the value of the one reward of an item."""
        _, rollout, target = item
        async with self._slots:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._reward.timeout):
                    outcome = await self._outcome(rollout, target)
            except TimeoutError:
                outcome = Outcome(error=timeout_message(self._reward.timeout))
            except NoGrade as error:
                outcome = Outcome(error=str(error))
            except ValueError as error:  # the row lacks a column of the prompt
                outcome = Outcome(error=f"ValueError: {error}")
            outcome.seconds = time.monotonic() - began
            return [outcome]

    @abstractmethod
    async def _outcome(self, rollout: Any, target: Any) -> Outcome:
        """Compute the score of a rollout."""


class Scorer(ServiceReward):
    """A reward model; the score is its value at the last token that the policy wrote. If a
    trajectory has several training rows, that is the last token of the answer that was sampled
    last, in whichever row."""

    def __init__(self, name: str, job: spec.Job, client: TrainerClient) -> None:
        reward = job.rewards[name]
        super().__init__(reward, MAX_CALLS)
        self._client, self._longest = client, job.trainers[str(reward.service)].batch.seq_len

    async def _outcome(self, rollout: Any, target: Any) -> Outcome:
        tokens = len(rollout.prompt.token_ids) + len(rollout.token_ids)
        if tokens > self._longest:
            return Outcome(error=f"the sequence has {tokens} tokens, more than "
                                 f"batch.seq_len = {self._longest} of its model")  # fmt: skip
        if not any(rollout.mask):
            return Outcome(error="the completion has no token of the policy")
        (values,) = await self._client.values([rollout])
        last = max(rollout.answers, key=lambda answer: (answer.finished, answer.end), default=None)
        learned = [at for at, own in enumerate(rollout.mask) if own]
        inside = [at for at in learned if last is None or last.start <= at < last.end]
        return Outcome(value=values[(inside or learned)[-1]])


class Judge(ServiceReward):
    """A judge model that is asked for a grade."""

    def __init__(
        self, name: str, job: spec.Job, client: GeneratorClient, tokenizer: ChatTokenizer
    ) -> None:
        reward = job.rewards[name]
        least, most = reward.args["scale"]
        super().__init__(reward, reward.concurrent_calls)
        self._client, self._tokenizer = client, tokenizer
        self._grades: dict[int, int] = {}
        """grade of each token"""
        self._once = RequestCache(self._grade) if "other" in reward.inputs.values() else self._grade
        for grade in range(least, most + 1):
            tokens = tokenizer.tokenizer(str(grade), add_special_tokens=False)["input_ids"]
            if len(tokens) != 1:
                raise LaunchError(
                    f"{job.origins.get(name, '')}: the grade {grade} of {name} is {len(tokens)} "
                    f"tokens for the judge {reward.service}, but must be one token: choose "
                    "another scale"
                )
            self._grades[tokens[0]] = grade

    async def _outcome(self, rollout: Any, target: Any) -> Outcome:
        asked = questions(self._reward, rollout, target, self._clean)
        return Outcome(value=await mean_grade(self._reward, asked, self._once))

    async def _grade(self, text: str) -> float:
        """Return the expected grade of the judge's next token.

        Raises:
            NoGrade: the judge would not answer with a grade, or the prompt is too long for it.
        """
        chat = bool(self._tokenizer.tokenizer.chat_template)
        tokens = self._tokenizer.prompt_tokens(
            [{"role": "user", "content": text}] if chat else text
        )
        done = await self._client.sample(
            tokens, spec.Sampling(max_tokens=1), 0, grades=tuple(self._grades)
        )
        if not done.grades:
            raise NoGrade(f"a prompt of {len(tokens)} tokens exceeds the judge's context")
        mass = [math.exp(logprob) for logprob in done.grades]
        if sum(mass) < LEAST_MASS:
            raise NoGrade(
                f"the grades have only {sum(mass):.2%} of the probability of the judge's next "
                "token: the prompt must ask for a grade, and must end where the judge writes "
                "the grade"
            )
        return sum(g * p for g, p in zip(self._grades.values(), mass, strict=True)) / sum(mass)

    def _clean(self, text: str) -> str:
        for token in self._tokenizer.specials:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text
