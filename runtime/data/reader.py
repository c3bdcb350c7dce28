"""DatasetReader: the stream of prompts, supervised samples or preference pairs of one dataset.

    Dataset + row functions + tokenizer + source --> next_prompt | next_batch | next_pair

Lives in the controller's process and is read by one caller at a time. `cursor` counts the source
rows consumed, dropped ones included, and is all the state there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.runtime.data.chat import ChatTokenizer
from forgedsl.runtime.data.sources import Source, open_source
from forgedsl.runtime.items import Prompt, Rollout, Sample
from forgedsl.runtime.models import tokenizer_folder
from forgedsl.runtime.places import described, placed

T = TypeVar("T")
MAX_DROPPED = 10_000
"""rows dropped in a row before a dataset of unknown length counts as having no usable one"""


class RowView:
    """A row as generated functions see it: `row.question`."""

    __slots__ = ("_row",)

    def __init__(self, row: Any) -> None:
        self._row = row

    def __getattr__(self, column: str) -> Any:
        try:
            return self._row[column]
        except KeyError:
            names = ", ".join(sorted(map(str, self._row)))
            raise RunError(f"the row has no column `{column}`; its columns are {names}") from None


def open_dataset(
    job: spec.Job, name: str, *, program: ModuleType, job_dir: Path, run_dir: Path
) -> DatasetReader:
    """The reader of dataset `name`, at its beginning.

    Raises:
        LaunchError: its data or its tokenizer cannot be loaded.
    """
    dataset = job.datasets[name]
    folder = tokenizer_folder(job, dataset.tokenizer, job_dir, run_dir)
    tokenizer = ChatTokenizer.load(str(folder), job.models[dataset.tokenizer].chat_template)
    source = open_source(
        dataset.source, shuffle=dataset.shuffle, streaming=dataset.streaming, job_dir=job_dir
    )
    origin = job.origins.get(name, "")
    return DatasetReader(dataset, source, tokenizer, program, name=name, origin=origin)


class DatasetReader:
    """Reads a dataset from `cursor` on, for ever. `dropped` counts rows left out, by reason."""

    def __init__(
        self,
        dataset: spec.Dataset,
        source: Source,
        tokenizer: ChatTokenizer,
        program: ModuleType,
        *,
        name: str,
        origin: str = "",
    ) -> None:
        self.dataset = dataset
        self.source = source
        self.tokenizer = tokenizer
        self.program = program
        self.name = name
        self.origin = origin
        self.cursor = 0
        self.dropped: Counter[str] = Counter()

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None where the source is streamed."""
        return self.source.num_rows

    @property
    def epochs(self) -> float:
        """How often the rows have been read so far."""
        return self.cursor / self.num_rows if self.num_rows else 0.0

    def seek(self, cursor: int) -> None:
        """Continue with the row that follows position `cursor`."""
        self.cursor = cursor

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "dropped": dict(self.dropped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor, self.dropped = state["cursor"], Counter(state["dropped"])

    def next_prompt(self) -> Prompt:
        """The next prompt that fits; its `cursor` is the position after it."""
        return self._next(self._prompt)

    def next_pair(self, seq_len: int) -> tuple[Rollout, Rollout]:
        """The next (chosen, rejected), completions of one prompt, each of at most `seq_len`."""
        return self._next(lambda row_id, row: self._pair(row_id, row, seq_len))

    def next_batch(self, rows: int, seq_len: int, *, pack: bool = True) -> list[Sample]:
        """Supervised samples that fill `rows` rows of `seq_len` tokens."""
        samples: list[Sample] = []
        befores: list[dict[str, Any]] = []
        while _rows_needed(samples, seq_len, pack=pack) <= rows:
            befores.append(self.state_dict())
            samples.append(self._next(lambda row_id, row: self._sample(row_id, row, seq_len)))
        self.load_state_dict(befores[-1])
        return samples[:-1]

    def prompts(self, limit: int | None = None) -> list[Prompt]:
        """The prompts of the first epoch from its beginning, at most `limit`; for evals."""
        if self.num_rows is None and limit is None:
            raise self._error(
                "a streamed dataset has no end to evaluate to",
                remedy="set eval.limit, or streaming = false",
            )
        found: list[Prompt] = []
        for position in range(self.num_rows if self.num_rows is not None else MAX_DROPPED):
            if len(found) == limit:
                break
            prompt = self._read(position, self._prompt)
            if prompt is not None:
                prompt.cursor = position + 1
                found.append(prompt)
        return found

    def _next(self, make: Callable[[int, RowView], T | None]) -> T:
        """What `make` gives for the next row that it does not drop."""
        patience = self.num_rows or MAX_DROPPED
        for _ in range(patience):
            item = self._read(self.cursor, make)
            self.cursor += 1
            if item is not None:
                return item
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.dropped.items())
        raise self._error(
            f"none of {patience} rows in a row can be used ({reasons})",
            remedy="raise max_prompt_tokens or batch.seq_len, or set on_long = truncate",
        )

    def _read(self, position: int, make: Callable[[int, RowView], T | None]) -> T | None:
        row_id, row = self.source.at(position)
        try:
            return make(row_id, RowView(row))
        except RunError as error:
            raise self._error(f"row {row_id}: {placed(error)}", remedy=error.remedy) from error
        except Exception as error:
            raise self._error(f"row {row_id}: {described(error)}") from error

    def _prompt(self, row_id: int, row: RowView) -> Prompt | None:
        assert self.dataset.prompt is not None
        return self._prompt_item(row_id, row, self._column(self.dataset.prompt, row))

    def _prompt_item(self, row_id: int, row: RowView, prompt: Any) -> Prompt | None:
        tokens, text = self.tokenizer.prompt_tokens(prompt), self.tokenizer.prompt_text(prompt)
        limit = self.dataset.max_prompt_tokens
        if limit is not None and len(tokens) > limit:
            if not self._keeps_long(
                f"the prompt has {len(tokens)} tokens", "max_prompt_tokens", limit
            ):
                return None
            tokens = tokens[-limit:]
            text = self.tokenizer.decode(tokens)
        target = None if self.dataset.target is None else self._column(self.dataset.target, row)
        return Prompt(
            group=0, row=row_id, text=text, token_ids=tokens, target=target, cursor=self.cursor + 1
        )

    def _sample(self, row_id: int, row: RowView, seq_len: int) -> Sample | None:
        assert self.dataset.chat is not None
        messages = self._column(self.dataset.chat, row)
        tokens, mask = self.tokenizer.conversation(
            messages, self.dataset.learn or "assistant_turns"
        )
        if len(tokens) > seq_len:
            if not self._keeps_long(f"the chat has {len(tokens)} tokens", "batch.seq_len", seq_len):
                return None
            tokens, mask = tokens[:seq_len], mask[:seq_len]
        if not any(mask):
            self.dropped["nothing to learn"] += 1
            return None
        start = mask.index(True)
        return Sample(token_ids=tokens, num_prompt=start, mask=mask[start:])

    def _pair(self, row_id: int, row: RowView, seq_len: int) -> tuple[Rollout, Rollout] | None:
        """`chosen` and `rejected` are answers to `prompt`, or whole chats that end in them."""
        assert self.dataset.chosen is not None
        assert self.dataset.rejected is not None
        sides = [self._column(name, row) for name in (self.dataset.chosen, self.dataset.rejected)]
        if self.dataset.prompt is not None:
            prompt = self._column(self.dataset.prompt, row)
        else:
            prompt = sides[0][:-1]
            if sides[1][:-1] != prompt:
                raise RunError("chosen and rejected answer different prompts")
        item = self._prompt_item(row_id, row, prompt)
        if item is None:
            return None
        answers = [side if isinstance(side, str) else side[-1]["content"] for side in sides]
        chosen, rejected = (
            self._answer(item, i, prompt, answer) for i, answer in enumerate(answers)
        )
        return (chosen, rejected) if self._fits((chosen, rejected), seq_len) else None

    def _fits(self, sides: tuple[Rollout, Rollout], seq_len: int) -> bool:
        """Whether the pair is kept; answers that are too long are cut if `on_long` says so."""
        room = seq_len - len(sides[0].prompt.token_ids)
        longest = max(side.num_tokens for side in sides)
        if longest <= room:
            return True
        what = f"a side of the pair has {seq_len - room + longest} tokens"
        if not self._keeps_long(what, "batch.seq_len", seq_len) or room < 1:
            return False
        for side in sides:
            side.token_ids, side.mask = side.token_ids[:room], side.mask[:room]
        return True

    def _answer(self, item: Prompt, sibling: int, prompt: Any, answer: str) -> Rollout:
        tokens = self.tokenizer.completion_tokens(prompt, answer)
        return Rollout(
            group=0,
            sibling=sibling,
            prompt=item,
            token_ids=tokens,
            logprobs=[],
            mask=[True] * len(tokens),
            text=answer,
            truncated=False,
            version_min=0,
            version_max=0,
            started=0.0,
            finished=0.0,
        )

    def _column(self, function: str, row: RowView) -> Any:
        return getattr(self.program, function)(row)

    def _keeps_long(self, what: str, setting: str, limit: int) -> bool:
        """Apply `on_long`: True to truncate, False to drop."""
        if self.dataset.on_long == "error":
            raise RunError(
                f"{what}, more than {setting} = {limit}",
                remedy=f"raise {setting}, or set on_long = drop or truncate",
            )
        if self.dataset.on_long == "drop":
            self.dropped["too long"] += 1
        return self.dataset.on_long == "truncate"

    def _error(self, message: str, *, remedy: str = "") -> RunError:
        return RunError(f"dataset {self.name}: {message}", origin=self.origin, remedy=remedy)


def _rows_needed(samples: Sequence[Sample], seq_len: int, *, pack: bool) -> int:
    """Rows that samples take, longest first, each in the first row with room: the trainer's way."""
    if not pack:
        return len(samples)
    room: list[int] = []
    for size in sorted((len(sample.token_ids) for sample in samples), reverse=True):
        slot = next((i for i, left in enumerate(room) if left >= size), None)
        if slot is None:
            slot = len(room)
            room.append(seq_len)
        room[slot] -= size
    return len(room)
