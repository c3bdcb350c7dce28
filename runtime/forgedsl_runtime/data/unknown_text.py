"""Text that a tokenizer does not know: it becomes the token `<unk>`, whatever it says.

items of a reader --UnknownText.watched--> number of rows with such text, and its characters
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data_types import Prompt, Rollout, Sample

T = TypeVar("T")
SHOWN = 8
"""number of characters that a message names"""


class UnknownText:
    """Counts rows with text that a tokenizer does not know."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tried: dict[str, bool] = {}
        self.num_rows = 0

    def watched(
        self, make: Callable[[int, Any], T], text_of: Callable[[int, Any, T], str]
    ) -> Callable[[int, Any], T]:
        """Wrap `make` so that its items are counted; `text_of` returns the text of an item."""

        def made(row_id: int, row: Any) -> T:
            thing = make(row_id, row)
            if self._tokenizer.unknown in tokens_of(thing):
                self.num_rows += 1
                self.add(text_of(row_id, row, thing))
            return thing

        return made if self._tokenizer.unknown is not None else make

    def add(self, text: str) -> None:
        """Try the characters of a text, each once, without those of special tokens."""
        for special in self._tokenizer.specials:
            text = text.replace(special, "")
        for each in set(text) - self._tried.keys():
            self._tried[each] = self._tokenizer.unknown in self._tokenizer.ids(each)

    @property
    def characters(self) -> str:
        """`"W", "h", "a" and 5 more`; "" if the tokenizer knows each character alone."""
        found = sorted(each for each, unknown in self._tried.items() if unknown)
        shown = [f'"{each}"' if each.isprintable() else repr(each) for each in found[:SHOWN]]
        if len(found) > SHOWN:
            return f"{', '.join(shown)} and {len(found) - SHOWN} more"
        return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def tokens_of(item: Any) -> list[int]:
    """Return the tokens of a prompt, a sample or a pair; none of other items."""
    if isinstance(item, Prompt | Sample):
        return item.token_ids
    if isinstance(item, tuple):
        return [token for side in item if isinstance(side, Rollout) for token in side.token_ids]
    return []
