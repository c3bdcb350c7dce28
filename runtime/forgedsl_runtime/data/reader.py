"""DatasetReader: the stream of prompts, supervised samples or preference pairs of one dataset.

    Dataset + row functions + tokenizer + source --> next_prompt | next_batch | next_pair
                                                 `-> rows left out: dropped_rows.py

Lives in the controller's process and is read by one caller at a time. `cursor` counts the consumed
source rows, including dropped ones, and is the only state. Only the row itself decides if it is
dropped, so a resumed run drops the same rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from forgedsl import rows
from forgedsl.errors import LaunchError, RunError
from forgedsl.lower import dataset_columns
from forgedsl.lower import job as spec
from forgedsl.rows import NOTHING, TOO_LONG, DroppedRow
from forgedsl.types.flow import Role
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data.dropped_rows import DroppedRows
from forgedsl_runtime.data.sources import Mixture, Source, Unreadable, open_source
from forgedsl_runtime.data.unknown_text import UnknownText
from forgedsl_runtime.data_types import Prompt, Rollout, Sample
from forgedsl_runtime.models import tokenizer_folder
from forgedsl_runtime.program import Row, item

T = TypeVar("T")
SECONDS = 4.0
"""time limit for checking rows before a run; the others are checked when they are drawn"""
UNKNOWN = 0.01
"""fraction of rows with text that the tokenizer does not know from which that is reported"""
MAX_DROPPED = 10_000
"""consecutive dropped rows after which a dataset of unknown length counts as unusable"""


class TooLongError(RunError):
    """A row is too long, and `on_long = error` ends the run."""


def open_dataset(
    job: spec.Job, name: str, *, program: ModuleType, job_dir: Path, run_dir: Path
) -> DatasetReader:
    """Return the reader of dataset `name`, at its beginning.

    Raises:
        LaunchError: its data or its tokenizer cannot be loaded.
    """
    tokenizer = load_tokenizer(job, job.datasets[name].tokenizer, job_dir, run_dir)
    return reader_of(job, name, tokenizer, program=program, job_dir=job_dir)


def load_tokenizer(
    job: spec.Job, model: str, job_dir: Path, run_dir: Path, *, offline: bool = False
) -> ChatTokenizer:
    """Return the tokenizer of a model, with the model's chat template. `offline` forbids downloads.

    Raises:
        LaunchError: it cannot be loaded.
    """
    folder = tokenizer_folder(job, model, job_dir, run_dir, offline=offline)
    try:
        given = job.models[model]
        return ChatTokenizer.load(str(folder), given.chat_template, given.tool_calls)
    except (OSError, ValueError) as error:
        origin = job.origins.get(model, "")
        why = str(error).strip().partition("\n")[0]
        raise LaunchError(f"{origin}: the tokenizer of model {model}: {why}") from error


def reader_of(
    job: spec.Job, name: str, tokenizer: ChatTokenizer | None, *, program: ModuleType,
    job_dir: Path, offline: bool = False,
) -> DatasetReader:  # fmt: skip
    """Return the reader of dataset `name`. Without a tokenizer, rows can only be checked. `offline`
    forbids downloads.

    Raises:
        LaunchError: its data cannot be loaded.
    """
    dataset = job.datasets[name]
    source = open_source(
        dataset.source, shuffle=dataset.shuffle, streaming=dataset.streaming, job_dir=job_dir,
        offline=offline,
    )  # fmt: skip
    origin = job.origins.get(name) or job.origins.get(name.partition(".")[0], "")
    return DatasetReader(
        dataset, source, tokenizer, program, name=name, origin=origin, wanted=Wanted.by(job, name),
        per_step=dataset_columns.per_step(job, name),
    )  # fmt: skip


def item_maker(job: spec.Job, name: str, reader: DatasetReader) -> Callable[[int, Row], Any]:
    """Return the function that makes a prompt, sample or pair from a row. Without a tokenizer, the
    function only checks the columns of the row."""
    read, seq_len, rows = dataset_columns.read_by(job, name)
    if read is Role.PROMPTS:
        return reader.prompt if reader.measures else reader.question
    if read is Role.PAIRS:
        return partial(reader.pair, seq_len=seq_len, rows=rows) if reader.measures else reader.sides
    return partial(reader.sample, seq_len=seq_len) if reader.measures else reader.chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Row values that rewards and environments ask for, besides text and target. `columns` is None
    if they want whole rows."""

    columns: frozenset[str] | None = frozenset()
    messages: bool = False
    needed: Mapping[str, str] = field(default_factory=dict)
    """required column -> text that names the reward and its source place"""

    @classmethod
    def by(cls, job: spec.Job, dataset: str) -> Wanted:
        """Collect the columns that any reward or environment can read, and the columns required by
        those that score this dataset."""
        asks = any("messages" in r.inputs.values() or r.lists for r in job.rewards.values())
        needed = dataset_columns.needed(job, dataset)
        messages = asks or bool(job.environments)
        return cls(columns=dataset_columns.columns_of(job), messages=messages, needed=needed)

    def of(self, row: Row) -> dict[str, Any]:
        """Return the wanted columns that the row has.

        Raises:
            DroppedRow: a needed column is missing.
        """
        if self.columns is not None and not self.columns:
            return {}
        record: dict[str, Any] = item(row)
        for column, reward in self.needed.items():
            if column not in record:
                what = (
                    f"the row has no column `{column}`, a parameter of {reward}; its columns are "
                )
                raise DroppedRow(what + (", ".join(sorted(map(str, record))) or "none"))
        return {k: v for k, v in record.items() if self.columns is None or k in self.columns}


class DatasetReader:
    """Reads a dataset from `cursor` on, endlessly or up to the position `end`."""

    def __init__(
        self,
        dataset: spec.Dataset,
        source: Source,
        tokenizer: ChatTokenizer | None,
        program: ModuleType,
        *,
        name: str,
        origin: str = "",
        wanted: Wanted | None = None,
        per_step: int = 0,
    ) -> None:
        self.per_step = per_step
        self.wanted = wanted or Wanted()
        self.dataset = dataset
        self.source = source
        self.tokenizer = cast(ChatTokenizer, tokenizer)
        self.measures = tokenizer is not None  # else rows can be checked only, see item_maker
        self.roles = rows.ROLES if tokenizer is None else tokenizer.roles
        self.program = program
        self.name = name
        self.origin = origin
        self.cursor = 0
        self.end: int | None = None
        self.checked = 0
        """rows of the first epoch that were checked"""
        self._unknown = None if tokenizer is None else UnknownText(tokenizer)
        self.drops = DroppedRows(name, origin, dataset.max_bad_rows)
        self.cut = Counter[str]()
        """number of items that were cut, by the setting that limits them"""

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None if the source is streamed."""
        return self.source.num_rows

    @property
    def too_few_rows_warning(self) -> str:
        """Return a warning if there are fewer usable rows than one step draws; else ""."""
        usable = (self.num_rows or 0) - self.dropped.total()
        if self.num_rows is None or usable >= self.per_step:
            return ""
        verb = "is" if usable == 1 else "are"
        return (
            f"a step draws {self.per_step} rows, but only {usable} {verb} usable, so some rows "
            "occur several times in one step"
        )

    @property
    def num_unknown(self) -> int:
        """Number of checked rows with text that the tokenizer has no tokens for."""
        return 0 if self._unknown is None else self._unknown.num_rows

    @property
    def unknown_text(self) -> str:
        """Return a warning if the tokenizer does not know the text of many rows; else ""."""
        if self._unknown is None or self._unknown.num_rows <= UNKNOWN * self.checked:
            return ""
        named = f" ({found})" if (found := self._unknown.characters) else ""
        return (
            f"{self._unknown.num_rows:,} of {self.checked:,} rows have text that the tokenizer of "
            f"{self.dataset.tokenizer} does not know{named}: the model reads a placeholder instead"
        )

    def _text_of(self, row_id: int, row: Row, item: Any) -> str:
        """Return the text that an item was made from."""
        if isinstance(item, Sample):
            return "".join(str(message["content"]) for message in self.chat(row_id, row))
        if isinstance(item, Prompt):
            return item.text
        return "".join(f"{side.prompt.text}{side.text}" for side in item)

    @property
    def is_chat(self) -> bool:
        """True if the prompt of the first usable row is a chat; False for a stream, where it is
        unknown."""
        made = (self._read(position, self.prompt) for position in range(min(8, self.num_rows or 0)))
        first = next((prompt for prompt in made if prompt is not None), None)
        return first is not None and first.messages is not None

    @property
    def dropped(self) -> Counter[str]:
        """Rows left out so far, by reason; each row counts once."""
        return Counter(self.drops.counts)

    @property
    def ended(self) -> bool:
        """True if nothing is left to draw."""
        return self.end is not None and self.cursor >= self.end

    def seek(self, cursor: int) -> None:
        """Continue with the row at position `cursor`, after that many consumed rows."""
        self.cursor = cursor

    def check(self, make: Callable[[int, Row], Any], seconds: float) -> None:
        """Check the rows of the first epoch before a run, for at most `seconds`, and report what
        would be left out. Streamed rows are checked only when they are drawn.

        Raises:
            GuardError: there are more bad rows than `max_bad_rows` allows.
            RunError: no row can be used.
        """
        began = time.monotonic()
        make = make if self._unknown is None else self._unknown.watched(make, self._text_of)
        self.drops.summary_follows = True
        for position in range(self.num_rows or 0):
            if time.monotonic() - began > seconds:
                break
            self._read(position, make)
        self.drops.summary_follows = False
        if self.num_rows:
            self.drops.report(self.checked, self.num_rows, time.monotonic() - began)
            if self.dropped.total() == self.num_rows:
                raise self._unusable(self.num_rows)
        for text in filter(None, (self.too_few_rows_warning, self.unknown_text)):
            self.drops.emit("warning", text=f"dataset {self.name}: {text}")

    def next_prompt(self) -> Prompt | None:
        """Return the next usable prompt, or None at the end. Its `cursor` is the position after
        it."""
        return self._next(self.prompt, self.end)

    def next_pair(self, seq_len: int, rows: int) -> tuple[Rollout, Rollout] | None:
        """Return the next (chosen, rejected): two completions of one prompt, each at most
        `seq_len` tokens long, prompt included, and both together at most `rows` such rows. None at
        the end."""
        return self._next(partial(self.pair, seq_len=seq_len, rows=rows), self.end)

    def next_batch(self, rows: int, seq_len: int, *, pack: bool = True) -> list[Sample]:
        """Return supervised samples that fill `rows` rows of `seq_len` tokens."""
        samples: list[Sample] = []
        befores: list[int] = []
        while _rows_needed(samples, seq_len, pack=pack) <= rows:
            befores.append(self.cursor)
            sample = self._next(lambda row_id, row: self.sample(row_id, row, seq_len), None)
            assert sample is not None, "an endless reader always has another row"
            samples.append(sample)
        self.seek(befores[-1])
        return samples[:-1]

    def prompts(self, limit: int | None = None) -> list[Prompt]:
        """Return the prompts of the first epoch from its beginning, at most `limit`; for evals.
        Without a tokenizer they have no tokens."""
        found = []
        make = self.prompt if self.measures else self._unmeasured
        for position, prompt in self._first_epoch(make, limit):
            prompt.cursor = position + 1
            found.append(prompt)
        return found

    def rollout_with_answer(self, text: str) -> Rollout | None:
        """Return the first usable prompt with this answer, to try out a reward."""
        prompt = next(iter(self.prompts(1)), None)
        if prompt is None:
            return None
        return self.answer_to(prompt, text)

    def answer_to(self, prompt: Prompt, text: str) -> Rollout:
        """Return an answer to a prompt, to try out a reward. It has tokens if there is a
        tokenizer."""
        rollout = self._answer(prompt, 0, prompt.messages or prompt.text, text)
        rollout.others = (text,)
        return rollout

    def _unmeasured(self, row_id: int, row: Row) -> Prompt:
        """Make the prompt of a row without its tokens. The text of a chat is that of its
        messages."""
        asked, target, columns = self.question(row_id, row)
        messages = None if isinstance(asked, str) else asked
        said = asked if messages is None else "\n\n".join(str(m["content"]) for m in messages)
        return Prompt(
            group=0, row=row_id, text=said, token_ids=[], target=target, columns=columns,
            messages=messages if self.wanted.messages else None,
        )  # fmt: skip

    def held_out(
        self, limit: int | None, seq_len: int, rows: int, *, paired: bool
    ) -> list[Sample | Rollout]:
        """Return the chats of the first epoch, or both sides of its pairs; for the loss of an eval.
        `rows`: of a microbatch, in which both sides of a pair must fit."""
        if paired:
            pairs = self._first_epoch(partial(self.pair, seq_len=seq_len, rows=rows), limit)
            return [side for _, pair in pairs for side in pair]
        return [s for _, s in self._first_epoch(partial(self.sample, seq_len=seq_len), limit)]

    def _first_epoch(
        self, make: Callable[[int, Row], T], limit: int | None
    ) -> Iterator[tuple[int, T]]:
        """Yield (position, item) for the usable rows of the first epoch."""
        if self.num_rows is None and limit is None:
            raise self._error(
                "a streamed dataset has no end, so an eval needs a limit",
                remedy="set eval.limit, or streaming = false",
            )
        count = 0
        for position in range(self.num_rows if self.num_rows is not None else MAX_DROPPED):
            if count == limit:
                break
            item = self._read(position, make)
            if item is not None:
                yield position, item
                count += 1

    def _next(self, make: Callable[[int, Row], T], end: int | None) -> T | None:
        """Return the item of the next usable row; None at `end`."""
        patience = self.num_rows or MAX_DROPPED
        for _ in range(patience):
            if end is not None and self.cursor >= end:
                return None
            item = self._read(self.cursor, make)
            self.cursor += 1
            if item is not None:
                return item
        raise self._unusable(patience)

    def _unusable(self, patience: int) -> RunError:
        return self._error(
            f"none of the first {patience} rows can be used "
            f"({self.drops.summary()}){self.drops.examples()}",
            remedy="fix the rows or columns; for rows that are too long raise max_prompt_tokens "
            "or batch.seq_len, or set on_long = truncate",
        )

    def _read(self, position: int, make: Callable[[int, Row], T]) -> T | None:
        """Return the item of a row, or None if the row is left out; a row left out is counted."""
        row_id, row = self.source.row_at(position)
        self.checked = min(max(self.checked, position + 1), self.num_rows or position + 1)
        try:
            if isinstance(row, Unreadable):
                raise DroppedRow(row.why)
            return make(row_id, Row(row))
        except TooLongError as error:
            place = self.source.place(row_id)
            raise self._error(f"{place}: {error}", remedy=error.remedy) from error
        except Exception as error:
            if isinstance(self.source, Mixture) and not self.drops.sources:
                self.drops.sources = self.source.differing_columns()
            # Any error of a column function concerns this row only.
            self.drops.add(row_id, self.source.place(row_id), error, self.checked)
            return None

    def prompt(self, row_id: int, row: Row) -> Prompt:
        """Make the prompt of a row."""
        item = self._prompt_item(row_id, row, *self.question(row_id, row))
        if self.dataset.level is not None:
            item.level = str(self._column("level", row))
        return item

    def question(self, row_id: int, row: Row) -> tuple[Any, Any, dict[str, Any]]:
        """Return the prompt, the target of rewards, and the columns for rewards."""
        prompt = rows.prompt(self._column("prompt", row), self.roles)
        return prompt, self._target(row), self.wanted.of(row)

    def _target(self, row: Row) -> Any:
        return None if self.dataset.target is None else self._column("target", row)

    def _prompt_item(
        self, row_id: int, row: Row, prompt: Any, target: Any, columns: dict[str, Any]
    ) -> Prompt:
        text = self.tokenizer.prompt_text(prompt)
        tokens = self.tokenizer.prompt_tokens(prompt, text)
        limit = self.dataset.max_prompt_tokens
        if limit is not None and len(tokens) > limit:
            self._cut(f"the prompt has {len(tokens)} tokens", "max_prompt_tokens", limit)
            tokens = tokens[-limit:]
            text = self.tokenizer.decode(tokens)
        if not tokens:
            raise DroppedRow("the prompt has no tokens")
        return Prompt(
            group=0, row=row_id, text=text, token_ids=tokens, target=target, cursor=self.cursor + 1,
            messages=prompt if self.wanted.messages and not isinstance(prompt, str) else None,
            columns=columns,
        )  # fmt: skip

    def sample(self, row_id: int, row: Row, seq_len: int) -> Sample:
        """Make the training sample of a row's conversation."""
        learn = self.dataset.learn or "assistant_turns"
        tokens, mask = self.tokenizer.conversation(self.chat(row_id, row), learn)
        if len(tokens) > seq_len:
            self._cut(f"the chat has {len(tokens)} tokens", "batch.seq_len", seq_len)
            tokens, mask = tokens[:seq_len], mask[:seq_len]
        if not any(mask):
            raise DroppedRow("no token of the chat contributes to the loss", NOTHING)
        start = mask.index(True)
        return Sample(token_ids=tokens, num_prompt=start, mask=mask[start:])

    def pair(self, row_id: int, row: Row, seq_len: int, rows: int) -> tuple[Rollout, Rollout]:
        """Make a preference pair. `chosen` and `rejected` are answers to `prompt`, or whole chats
        that end in them. Both fit in a microbatch of `rows` rows of `seq_len` tokens."""
        prompt, answers = self.sides(row_id, row)
        item = self._prompt_item(row_id, row, prompt, self._target(row), self.wanted.of(row))
        chosen, rejected = (
            self._answer(item, i, prompt, answer) for i, answer in enumerate(answers)
        )
        self._fit((chosen, rejected), seq_len, rows)
        return chosen, rejected

    def chat(self, row_id: int, row: Row) -> list[Any]:
        """Return the messages to learn from.

        Raises:
            DroppedRow: no turn can be learned.
        """
        chat = rows.messages("`chat`", self._column("chat", row), self.roles)
        answers = [m for m in chat if m["role"] == "assistant"]
        if self.dataset.learn != "all" and not answers:
            raise DroppedRow("the chat has no message with role `assistant`", NOTHING)
        if answers and not any(m.get("tool_calls") or m["content"].strip() for m in answers):
            raise DroppedRow("every message with role `assistant` is empty", NOTHING)
        return chat

    def sides(self, row_id: int, row: Row) -> tuple[Any, list[str]]:
        """Return the prompt, and the two answers, chosen first."""
        answers = self._column("chosen", row), self._column("rejected", row)
        asked = None if self.dataset.prompt is None else self._column("prompt", row)
        return rows.sides(asked, answers, self.roles)

    def _fit(self, sides: tuple[Rollout, Rollout], seq_len: int, rows: int) -> None:
        """Cut answers that are too long, if `on_long` allows that. In a microbatch of one row they
        share this row."""
        asked = len(sides[0].prompt.token_ids)
        lengths = [side.num_tokens for side in sides]
        each, both = seq_len - asked, max(rows, 1) * seq_len - 2 * asked
        if max(lengths) > each:
            what = f"an answer of the pair has {asked + max(lengths)} tokens with its prompt"
            more = ""
        elif sum(lengths) > both:
            whole = 2 * asked + sum(lengths)
            what = f"the pair has {whole} tokens with its prompts, which share a row"
            more = "batch.rows to 2, or "
        else:
            return
        self._cut(what, "batch.seq_len", seq_len, more=more)
        if min(each, both - 1) < 1:
            raise DroppedRow(f"{what}, and the prompt leaves no room for an answer", TOO_LONG)
        kept = [min(length, each) for length in lengths]
        shorter = kept.index(min(kept))
        kept[shorter] = min(kept[shorter], both // 2)
        kept[1 - shorter] = min(kept[1 - shorter], both - kept[shorter])
        for side, length in zip(sides, kept, strict=True):
            side.token_ids, side.mask = side.token_ids[:length], side.mask[:length]

    def _answer(self, item: Prompt, sibling: int, prompt: Any, answer: str) -> Rollout:
        tokens = self.tokenizer.completion_tokens(prompt, answer) if self.measures else []
        return Rollout(
            group=0, sibling=sibling, prompt=item, token_ids=tokens, logprobs=[],
            mask=[True] * len(tokens), text=answer, truncated=False, version_min=0, version_max=0,
            started=0.0, finished=0.0,
        )  # fmt: skip

    def _column(self, column: str, row: Row) -> Any:
        value = getattr(self.program, getattr(self.dataset, column))(row)
        if value is None:
            raise DroppedRow(f"`{column}` is null")
        return value

    def _cut(self, what: str, setting: str, limit: int, *, more: str = "") -> None:
        """Apply `on_long` to an item that is too long; return only if it is `truncate`. `more`:
        another remedy, such as "batch.rows to 2, or "."""
        message = f"{what}, more than {setting} = {limit}"
        if self.dataset.on_long == "error":
            remedy = f"raise {more}{setting}, or set on_long = drop or truncate"
            raise TooLongError(message, remedy=remedy)
        if self.dataset.on_long == "drop":
            raise DroppedRow(message, TOO_LONG)
        self.cut[setting] += 1

    def _error(self, message: str, *, remedy: str = "") -> RunError:
        return RunError(f"dataset {self.name}: {message}", origin=self.origin, remedy=remedy)


def _rows_needed(samples: Sequence[Sample], seq_len: int, *, pack: bool) -> int:
    """Number of rows that samples take when packed as in the trainer: first fit, longest first."""
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
