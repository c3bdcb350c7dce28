"""Calls Python rewards with constructed answers, in a confined reward process as in a run.

    ProbeRows (rows, how to answer) --call_rewards--> RewardCalls by name

First it searches for a form of answer in which the right answer is paid more than a wrong one. The
other answers are written in this form. In the end all answers are scored again: in the same
process, and in a new one in another order. All calls together have a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lint.call_results import SAME, Call, CalledRow, Change, RewardCalls
from forgedsl.lower.job import Job
from forgedsl.shipped import locate
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.probes import answers
from forgedsl_runtime.probes.answers import Answer
from forgedsl_runtime.probes.confined import REFUSED
from forgedsl_runtime.rewards.process import RewardProcess
from forgedsl_runtime.rewards.worker import Outcome, Recipe

LOADING = 20.0
CALL = 2.0
"""seconds that one call may take"""
ROWS = 3
READS_TARGET = ("target", "rollout", "row")
STUFFED = "stuffed"
CHARACTERS = 3
"""characters of a token, for texts that are not tokenized"""
LONG = "long"
"""kind of answer that is longer than all that a policy can write; it only shows if the reward fails
on it"""
READS_TOKENS = ("rollout", "token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRows:
    """Rows of a dataset, and a function that makes an answer to one. With `measured`, answers have
    tokens (there is a tokenizer)."""

    prompts: tuple[Prompt, ...]
    places: tuple[str, ...]
    answer: Callable[[Prompt, str], Rollout]
    measured: bool
    max_tokens: int
    """length of the longest answer of the policy, in tokens"""

    def fits(self, prompt: Prompt, text: str) -> bool:
        """True if the policy can write an answer: it is not too long. Without a tokenizer each
        character counts as a token."""
        tokens = len(self.answer(prompt, text).token_ids) if self.measured else len(text)
        return tokens <= self.max_tokens


class Stopped(Exception):
    """No further call can be made; the message says why."""


class _Calls:
    """Calls one reward until `deadline`."""

    def __init__(
        self, process: RewardProcess, name: str, asked: ProbeRows, deadline: float
    ) -> None:
        self.process, self.name, self.asked, self.deadline = process, name, asked, deadline

    async def start(self) -> None:
        left = min(LOADING, self.deadline - time.monotonic())
        if left <= 0:
            raise Stopped("the time for calls is over")
        try:
            await self.process.start(left)
        except LaunchError as error:
            refused = f"exit code {REFUSED}" in str(error)
            raise Stopped(_EFFECTS if refused else str(error)) from None

    async def __call__(self, prompt: Prompt, made: Answer) -> Call:
        if time.monotonic() > self.deadline:
            raise Stopped("the time for calls is over")
        # do not tokenize a very long text: the tokenizer would warn, and its tokens are not needed
        is_long = made.kind in (LONG, STUFFED)
        answer = self.asked.answer(prompt, "" if is_long else made.text)
        answer.text = made.text
        found: Outcome
        (found,) = await self.process.call(((self.name,), answer, answer.target))
        if found.ended:
            refused = f"exit code {REFUSED}" in found.error
            raise Stopped(_EFFECTS if refused else found.error)
        if found.error.startswith("no answer within"):
            raise Stopped(f"{made.said} took longer than {CALL:g} s")
        return Call(
            kind=made.kind, said=made.said, text=made.text, error=found.error,
            score=None if found.value is None else float(found.value),
        )  # fmt: skip


_EFFECTS = "it writes files, starts processes or connects to others, and declares no such effect"


def call_rewards(
    job: Job, folder: Path, asked: Mapping[str, ProbeRows], seconds: float,
    progress: Callable[[str], object] = str,
) -> dict[str, RewardCalls]:  # fmt: skip
    """Call rewards, each on its rows, for at most `seconds` in all."""

    async def call() -> dict[str, RewardCalls]:
        deadline = time.monotonic() + seconds
        found = {}
        for name, rows in asked.items():
            progress(f"calling reward {name}")
            found[name] = await _call_reward(job, folder, name, rows, deadline)
        return found

    return asyncio.run(call())


async def _call_reward(
    job: Job, folder: Path, name: str, asked: ProbeRows, deadline: float
) -> RewardCalls:
    spec = job.rewards[name]
    recipe = Recipe.of(job, str(folder), (name,))
    short = spec.model_copy(update={"timeout": min(spec.timeout, CALL)})
    recipe = replace(recipe, rewards={name: short}, confined=True)
    sources = [*spec.inputs.values(), *spec.positional]
    reads_tokens = any(source in READS_TOKENS for source in sources)
    if not asked.measured and reads_tokens:
        return RewardCalls(note="the tokenizer is not on this machine")
    codes = [
        locate(path, folder).read_text("utf-8")
        for path in (spec.path, *(module.path for module in spec.modules.values()))
        if path is not None
    ]
    targeted = not job.environments and _reads_target(sources, asked)
    probe = _Probe(asked, codes, targeted=targeted, reads_tokens=reads_tokens)
    for fresh in (False, True):
        process = RewardProcess(recipe)
        try:
            calls = _Calls(process, name, asked, deadline)
            await calls.start()
            await (probe.again(calls) if fresh else probe.first(calls))
        except Stopped as why:
            probe.note = str(why)
        finally:
            process.close()
        if probe.note or probe.change:
            break
    return replace(probe.result, drops_errors=spec.on_error == "drop")


def _reads_target(sources: Sequence[str], asked: ProbeRows) -> bool:
    """True if the reward is given the target of all rows, in whatever parameter."""
    if any(answers.answerable_text(prompt.target) is None for prompt in asked.prompts):
        return False
    for source in sources:
        column = source.partition(" ")[2]
        values = [prompt.columns.get(column) for prompt in asked.prompts] if column else []
        if source in READS_TARGET or (
            values
            and all(str(p.target) == str(v) for p, v in zip(asked.prompts, values, strict=True))
        ):
            return True
    return False


class _Probe:
    """The calls of one reward, as they come in."""

    def __init__(
        self, asked: ProbeRows, codes: Sequence[str], *, targeted: bool, reads_tokens: bool
    ) -> None:
        self.asked, self.codes, self.targeted = asked, codes, targeted
        self.reads_tokens = reads_tokens
        self.form, self.inverse, self.note = "", "", ""
        """`inverse`: a form in which a wrong number gets more than the right one"""
        self.tried: list[Call] = []
        self.fitting: list[str] = []
        """forms that were tried on the first row"""
        self.rows: list[dict[str, Call]] = [{} for _ in asked.prompts]
        self.change: Change | None = None
        self.targets = [answers.answerable_text(prompt.target) or "" for prompt in asked.prompts]

    @property
    def result(self) -> RewardCalls:
        return RewardCalls(
            reads_target=self.targeted, form=self.form, tried=tuple(self.tried),
            change=self.change, note=self.note,
            rows=tuple(
                CalledRow(place=place, target=prompt.target, calls=calls)
                for place, prompt, calls in zip(
                    self.asked.places, self.asked.prompts, self.rows, strict=True
                )
            ),
        )  # fmt: skip

    async def first(self, call: _Calls) -> None:
        """Find the form, score all kinds of answers, and score the same answers once more."""
        if self.targeted:
            await self._find_form(call)
        for index, prompt in enumerate(self.asked.prompts):
            for made in self._made(index):
                if self._can_ask(prompt, made):
                    self.rows[index][made.kind] = await call(prompt, made)
        await self._repeat(call, "when it is called again", range(len(self.rows)))

    def _can_ask(self, prompt: Prompt, made: Answer) -> bool:
        """True if the policy can write an answer, or if it shows how the reward takes long ones."""
        if made.kind not in (LONG, STUFFED):
            return self.asked.fits(prompt, made.text)
        is_short = len(made.text) <= CHARACTERS * self.asked.max_tokens
        return not self.reads_tokens and (made.kind == LONG or is_short)

    async def again(self, call: _Calls) -> None:
        """Score the same answers in a new process, in another order."""
        await self._repeat(call, "in another process", reversed(range(len(self.rows))))

    def _made(self, index: int) -> Iterator[Answer]:
        """Yield the answers to a row."""
        prompt, target = self.asked.prompts[index], self.targets[index]
        if self.form:
            wrong = self._wrong(index)
            yield from answers.basic(self.form, target, wrong)
            options = sorted({*self.targets})
            letters = all(len(each) == 1 and each.isalpha() for each in options)
            options = ["A", "B", "C", "D"] if letters and {*options} <= {*"ABCD"} else []
            words = answers.words_of(self.codes)
            question = _question(prompt)
            yield from answers.cheats(self.form, target, wrong, question, options, words)
            yield from answers.spellings(self.form, target)
        elif self.inverse:
            yield from answers.basic(self.inverse, target, self._wrong(index))
            yield answers.nearby(self.inverse, target)
        yield from answers.odd()

    def _wrong(self, index: int) -> str:
        return answers.wrong_for(self.targets[index], [t for t in self.targets if t])

    async def _find_form(self, call: _Calls) -> None:
        """Find a form in which the right answer is paid more than a wrong one, on every row."""
        forms = answers.forms(_question(self.asked.prompts[0], whole=True), self.codes)
        found: list[tuple[float, int, str]] = []
        for place, form in enumerate(forms):
            score = await self._right_score(call, form, 0)
            if score is not None:
                found.append((-score, place, form))
        for _, _, form in sorted(found):
            scores = [await self._right_score(call, form, i) for i in range(1, len(self.rows))]
            if None not in scores:
                self.form = form
                return
        first = self.tried[: 2 * len(self.fitting)]
        scored = [(r.score, w.score) for r, w in zip(first[::2], first[1::2], strict=True)]
        numbers = all(answers.as_number(target) is not None for target in self.targets)
        for form, (right, wrong) in zip(self.fitting, scored, strict=True):
            if numbers and right is not None and wrong is not None and wrong - right > SAME:
                self.inverse = self.inverse or form
        for form in forms if not found else ():
            for i in range(1, len(self.rows)):
                await self._right_score(call, form, i)

    async def _right_score(self, call: _Calls, form: str, index: int) -> float | None:
        """Return the score of the right answer in a form; None if a wrong one gets as much."""
        prompt = self.asked.prompts[index]
        made = answers.basic(form, self.targets[index], self._wrong(index))
        if not self.asked.fits(prompt, made[0].text):
            return None
        if not index:
            self.fitting.append(form)
        right, wrong = [await call(prompt, each) for each in made]
        self.tried += [right, wrong]
        if right.score is None or (wrong.score is not None and right.score - wrong.score <= SAME):
            return None
        return right.score

    async def _repeat(self, call: _Calls, when: str, order: Any) -> None:
        for index in order:
            prompt, kinds = self.asked.prompts[index], self.rows[index]
            for before in reversed([*kinds.values()]):
                if before.kind == LONG:
                    continue
                made = Answer(kind=before.kind, said=before.said, text=before.text)
                after = await call(prompt, made)
                if before.score is None or after.score is None:
                    continue
                if abs(before.score - after.score) > SAME:
                    self.change = Change(
                        call=before, place=self.asked.places[index], when=when,
                        then=after.score,
                    )  # fmt: skip
                    return


def _question(prompt: Prompt, *, whole: bool = False) -> str:
    """Return what the user asks: the text, or the last message of a chat, or all of them."""
    if not prompt.messages:
        return prompt.text
    said = [str(message.get("content") or "") for message in prompt.messages]
    return "\n".join(said) if whole else said[-1]
