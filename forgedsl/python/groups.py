"""Groups of completions of a Session, the batch of a step made of them, and a buffer of them."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forgedsl.python.arguments import check_count, check_is
from forgedsl.python.pages import PipelineError
from forgedsl.python.work import Work

if TYPE_CHECKING:
    from forgedsl_runtime.data_types import Batch, Prompt, Rollout


@dataclass(repr=False)
class Group:
    """The completions of one prompt. Set what you like on it: `group.adv = advantage(scores)`.

    `parts` has the values of the rewards behind `scores`, by name. It is NaN where a reward was not
    asked: a truncated completion has the score that `on_truncated` gives.
    """

    prompt: Prompt
    rollouts: list[Rollout]
    scores: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The oldest version of the policy that wrote a token of it."""
        return min((rollout.version_min for rollout in self.rollouts), default=0)

    @property
    def responses(self) -> list[str]:
        """The texts of the completions."""
        return [rollout.text for rollout in self.rollouts]

    def __len__(self) -> int:
        return len(self.rollouts)

    def __repr__(self) -> str:
        text = self.prompt.text
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        scores = ", ".join(f"{score:g}" for score in self.scores)
        return f"<Group {shown!r}: {len(self)} completions{', scores ' * bool(scores)}{scores}>"

    if TYPE_CHECKING:  # what is set on a group has no declaration

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...


class Buffer:
    """Groups of earlier steps. The oldest make room for new ones."""

    def __init__(self, groups: int, max_age: int, *, seed: int) -> None:
        self._groups: deque[Group] = deque(maxlen=groups)
        self.max_age = max_age
        self._random = random.Random(seed)

    def __repr__(self) -> str:
        most = self._groups.maxlen
        return f"<Buffer of {len(self)} of at most {most} groups, max_age {self.max_age}>"

    def put(self, groups: Sequence[Group]) -> None:
        """Add groups with all that is set on them."""
        self._groups.extend(_checked(groups))

    def draw(self, count: int, version: int) -> list[Group]:
        """At most `count` different groups that are no older than `max_age` at this version of the
        policy, such as `trainer.version`; older ones are forgotten."""
        check_count("count", count, 1)
        check_count("version", version, 0)
        kept = [each for each in self._groups if version - each.version <= self.max_age]
        self._groups = deque(kept, maxlen=self._groups.maxlen)
        return self._random.sample(kept, min(count, len(kept)))

    def __len__(self) -> int:
        return len(self._groups)


def assembled(groups: Sequence[Group], fields: Mapping[str, str]) -> Batch:
    """The batch of one step: a sample per completion, in order of groups."""
    from forgedsl_runtime.controller.assembly import sample_of
    from forgedsl_runtime.data_types import Batch

    batch = Batch(samples=[])
    for number, group in enumerate(_checked(groups)):
        values = {field: _values(group, source) for field, source in fields.items()}
        for index, rollout in enumerate(group.rollouts):
            sample = sample_of(rollout)
            for name, column in values.items():
                if isinstance(value := column[index], (list, tuple)):
                    if len(value) != len(sample.mask):
                        raise PipelineError(
                            f"`{name}` has {len(value)} values, but the completion has "
                            f"{len(sample.mask)} tokens"
                        )
                    sample.token_fields[name] = [float(each) for each in value]
                else:
                    sample.sequence_fields[name] = float(value)
            batch.samples.append(sample)
            batch.members.append(number)
        batch.groups.append(group.prompt.group)
        batch.rewards += group.scores
    if not batch.samples:
        raise PipelineError("a batch needs completions: there are none in these groups")
    return batch


def check_group(group: Any) -> Group:
    """Return the group of a call.

    Raises:
        PipelineError: something else was given.
    """
    check_is(group, Group, "`group` must be one group, as `sample` returns a list of them")
    return group  # type: ignore[no-any-return]


def _checked(groups: Any) -> Sequence[Group]:
    """Return the groups of a call.

    Raises:
        PipelineError: something else was given.
    """
    if not isinstance(groups, Sequence) or not all(isinstance(each, Group) for each in groups):
        given = repr(groups)[:60]
        raise PipelineError(f"`groups` must be a list of groups, as `sample` returns, not {given}")
    return groups


def _values(group: Group, source: str) -> Sequence[Any]:
    """Return the values that are set on a group under this name, one for each completion."""
    if not isinstance(source, str):
        raise PipelineError(
            "the values of a batch are named: set `group.NAME = [...]` on each group, and pass "
            f"the name as a text, not {repr(source)[:40]}"
        )
    if not hasattr(group, source):
        raise PipelineError(f"a group has no values `{source}`: set them with group.NAME = [...]")
    found: Any = getattr(group, source)
    if isinstance(found, Work):
        raise PipelineError(
            f"`{source}` of a group is a call, not its result: set group.{source} = ....result()"
        )
    found = found.tolist() if hasattr(found, "tolist") else found  # a tensor or an array
    if not isinstance(found, Sequence) or len(found) != len(group.rollouts):
        raise PipelineError(
            f"`{source}` of a group needs one value for each of its {len(group.rollouts)} "
            "completions"
        )
    rows = [each.tolist() if hasattr(each, "tolist") else each for each in found]
    for row in rows:
        for each in row if isinstance(row, list | tuple) else [row]:
            if not isinstance(each, int | float):
                raise PipelineError(f"`{source}` of a group must be numbers, not {each!r}")
            if not math.isfinite(each):
                raise PipelineError(
                    f"`{source}` of a group has {each}, with which the loss is not finite either: "
                    "leave such completions out, or give them another value"
                )
    return rows
