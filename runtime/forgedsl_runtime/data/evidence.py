"""Statistics over the rows of a dataset: separators that never occur, repeated rows, targets that
no answer can equal.

items of a reader --Evidence.record_items--> counts
program's after(s, sep) and before(s, sep) --separators--> by separator: [calls, calls whose text
                                                            contains it]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from forgedsl_runtime.data_types import Prompt, Rollout, Sample
from forgedsl_runtime.program import Row, item
from forgedsl_runtime.rewards.math_equal import is_answer
from forgedsl_runtime.rewards.text import target_text

T = TypeVar("T")
LEAST = 20
"""least number of rows for a statistic"""
TRIED = 50
"""number of targets that are checked: parsing mathematics is slow"""


class Evidence:
    """Collects facts about items of a reader. `parsed`: a reward reads the targets as
    mathematics."""

    def __init__(self, *, parsed: bool) -> None:
        self._rows: set[int] = set()
        self._plain: set[int] = set()
        """rows without regard to case and spaces"""
        self._seen = 0
        self._parsed = parsed
        self._targets: list[str] = []
        self._prompts: set[int] = set()
        self.results = 0
        """number of rows with results of tools and without a field with tool calls: the calls are
        part of the texts"""

    def record_items(self, make: Callable[[int, Any], T]) -> Callable[[int, Any], T]:
        """Wrap `make` so that its items are recorded."""

        def made(row_id: int, row: Any) -> T:
            thing = make(row_id, row)
            self._record(thing)
            self.results += _holds_results(row)
            return thing

        return made

    def _record(self, item: Any) -> None:
        self._seen += 1
        content = _content(item)
        self._rows.add(hash(content))
        self._plain.add(hash(_plain(content)))
        if isinstance(item, Prompt):
            self._prompts.add(hash(item.text))
            if self._parsed and len(self._targets) < TRIED:
                self._targets.append(target_text(item.target))

    @property
    def prompts(self) -> frozenset[int]:
        """Hashes of the prompts; empty if there are too few to compare."""
        return frozenset(self._prompts if len(self._prompts) >= LEAST else ())

    @property
    def repeated(self) -> int:
        """Number of rows that repeat an earlier row, in the columns that are read; 0 if there are
        few rows."""
        return self._seen - len(self._rows) if self._seen >= LEAST else 0

    @property
    def near_duplicates(self) -> int:
        """Number of rows that equal an earlier row except in case or spaces, without `repeated`."""
        return len(self._rows) - len(self._plain) if self._seen >= LEAST else 0

    @property
    def unparsed_target(self) -> str:
        """If no answer could equal most of the targets, return one of them as an example; else "".
        Such a target is neither a number, nor a formula, nor a few words."""
        bad = [text for text in self._targets if not is_answer(text)]
        return bad[0] if 2 * len(bad) > len(self._targets) else ""


def _holds_results(row: Any) -> bool:
    """True if a column holds messages with results of tools, and no message has a field with tool
    calls. The calls are then text of the assistant's turns, and can be learned as such."""
    columns = item(row) if isinstance(row, Row) else row
    for value in columns.values() if isinstance(columns, dict) else ():
        messages = value if isinstance(value, list) else []
        messages = [message for message in messages if isinstance(message, dict)]
        if any(message.get("role") == "tool" for message in messages):
            return not any(message.get("tool_calls") for message in messages)
    return False


def _content(item: Any) -> Any:
    if isinstance(item, Prompt):
        return item.text, repr(item.target)
    if isinstance(item, Sample):
        return tuple(item.token_ids)
    if isinstance(item, tuple) and all(isinstance(side, Rollout) for side in item):
        return tuple((side.prompt.text, side.text) for side in item)
    return repr(item)


def _plain(content: Any) -> Any:
    """Return the content with its texts in lower case, and one space between words."""
    if isinstance(content, str):
        return " ".join(content.casefold().split())
    return tuple(map(_plain, content)) if isinstance(content, tuple) else content


@contextmanager
def separators(program: ModuleType) -> Iterator[dict[str, list[int]]]:
    """Count, while open, how often the program searched for each separator and how often it was
    found."""
    found: dict[str, list[int]] = {}
    names = [name for name in ("after", "before") if name in vars(program)]
    plain: dict[str, Any] = {name: vars(program)[name] for name in names}

    def counted(function: Callable[[str, str], str]) -> Callable[[str, str], str]:
        def call(s: str, sep: str) -> str:
            counts = found.setdefault(sep, [0, 0])
            counts[0] += 1
            counts[1] += sep in s if isinstance(s, str) else 0
            return function(s, sep)

        return call

    vars(program).update({name: counted(function) for name, function in plain.items()})
    try:
        yield found
    finally:
        vars(program).update(plain)
