"""Stand-in dataset for rehearsals: row numbers and prompt lengths, no text."""

from __future__ import annotations

from collections.abc import Callable

from forgedsl_runtime.actors.stub_engine import TOKEN
from forgedsl_runtime.data_types import Prompt, Rollout, Sample


class StubReader:
    """Stand-in for DatasetReader, with the methods that the controller's process calls."""

    def __init__(
        self, rows: int, prompt_tokens: Callable[[int], float], epochs: float | None = None
    ) -> None:
        self.num_rows = rows
        self.cursor = 0
        self._end = None if epochs is None else epochs * rows
        self._tokens = prompt_tokens

    @property
    def ended(self) -> bool:
        return self._end is not None and self.cursor >= self._end

    def seek(self, cursor: int) -> None:
        self.cursor = cursor

    def next_prompt(self) -> Prompt | None:
        if self.ended:
            return None
        prompt = self._prompt(self.cursor)
        self.cursor += 1
        return prompt

    def next_pair(self, seq_len: int) -> tuple[Rollout, Rollout] | None:
        prompt = self.next_prompt()
        if prompt is None:
            return None
        chosen, rejected = (_answer(prompt, sibling, seq_len) for sibling in (0, 1))
        return chosen, rejected

    def next_batch(self, rows: int, seq_len: int, *, pack: bool = True) -> list[Sample]:
        self.cursor += rows
        sample = Sample(token_ids=[TOKEN] * seq_len, num_prompt=0, mask=[True] * seq_len)
        return [sample] * rows

    def prompts(self, limit: int | None = None) -> list[Prompt]:
        return [self._prompt(row) for row in range(min(self.num_rows, limit or self.num_rows))]

    def _prompt(self, row: int) -> Prompt:
        tokens = max(1, round(self._tokens(row)))
        return Prompt(
            group=-1, row=row % self.num_rows, text="", token_ids=[TOKEN] * tokens, target=None,
            cursor=row + 1,
        )  # fmt: skip


def _answer(prompt: Prompt, sibling: int, seq_len: int) -> Rollout:
    count = max(1, seq_len - len(prompt.token_ids))
    return Rollout(
        group=-1, sibling=sibling, prompt=prompt, token_ids=[TOKEN] * count,
        logprobs=[0.0] * count, mask=[True] * count, text="", truncated=False, version_min=0,
        version_max=0, started=0.0, finished=0.0,
    )  # fmt: skip
