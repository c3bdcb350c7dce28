"""The first step in which two runs differ, and what differs in it.

    rows and metrics of a step of both runs --differences--> Difference ..., causes first
    digests of published weights --weights--> Weights: where they part, and in which tensors

Values are compared in the order in which a step computes them. So the first difference is the cause
of the others, or close to the cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forgedsl.diagnostics import counted
from forgedsl.records import dataclass

Row = Mapping[str, Any]
Key = tuple[int, str, int]

STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("rows drawn", ("row", "prompt", "prompt_ids", "target", "columns")),
    ("policy versions that sampled", ("version_min", "version_max", "versions")),
    ("samples", ("token_ids", "mask", "response", "truncated", "ended")),
    ("log-probs of the sampler", ("behavior",)),
    ("values of other models", ("tokens/",)),
    ("rewards", ("part/", "rewards", "fixed")),
    ("scores", ("score/",)),
    ("advantages and other functions", ("value/",)),
    ("groups in the batch", ("dropped", "place/")),
    ("log-probs of the trainer", ("logprob/",)),
)
"""what a step computes, in order, with its columns; a name with `/` at its end is a prefix of
columns"""
METRICS = ("loss", "grad_norm", "lr", "entropy", "reward_mean", "reward_std")
REPORTS = ("loss/", "reward/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value of one completion (or a metric) that differs. `count` completions of `total`
    differ in this stage."""

    stage: str
    name: str
    where: str
    before: Any
    after: Any
    count: int
    total: int

    @property
    def text(self) -> str:
        values = f"{short(self.before)} -> {short(self.after)}"
        if not self.total:
            return f"{self.stage}: {self.name} {values}"
        many = f"{self.count} of {counted(self.total, 'completion')}"
        return f"{self.stage}: {many}; first {self.name} of {self.where}: {values}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Where the published weights of two runs part. Step 0 is before the first step."""

    compared: int
    """number of publications that both runs have recorded"""
    equal: int | None
    """last step before `step` after which they are equal"""
    step: int | None = None
    """first step after which they differ; None if they are equal"""
    names: tuple[str, ...] = ()
    """tensors that differ"""
    total: int = 0

    @property
    def text(self) -> str:
        if self.step is None:
            return (
                f"published weights: equal bit for bit in {counted(self.compared, 'publication')}"
            )
        begun = "from the start" if self.step == 0 else f"after step {self.step}"
        last = "" if self.equal is None else f"; equal bit for bit after step {self.equal}"
        shown = ", ".join(self.names[:NAMED])
        more = f" and {len(self.names) - NAMED} more" if len(self.names) > NAMED else ""
        many = f"{len(self.names)} of {counted(self.total, 'tensor')} differ"
        return f"published weights: {many} {begun}{last}: {shown}{more}"


NAMED = 4
"""maximum number of tensors that are listed by name"""


def weights(
    old: Mapping[tuple[int, str], Mapping[str, str]],
    new: Mapping[tuple[int, str], Mapping[str, str]],
) -> Weights | None:
    """Compare the digests that two runs have recorded, by step and trainer; None if they have no
    publication in common."""
    both = sorted(old.keys() & new.keys())
    if not both:
        return None
    equal: int | None = None
    for key in both:
        first, second = old[key], new[key]
        names = tuple(n for n in {**first, **second} if first.get(n) != second.get(n))
        if names:
            return Weights(compared=len(both), equal=equal, step=key[0], names=names,
                           total=len({**first, **second}))  # fmt: skip
        equal = key[0]
    return Weights(compared=len(both), equal=equal)


def differences(
    rows: tuple[Sequence[Row], Sequence[Row]], metrics: tuple[Row, Row], tolerance: float
) -> list[Difference]:
    """Return what differs in a step, causes first. Rows are empty where a run has not recorded the
    step. `tolerance` is relative, for floats."""
    found = list(_of_rows(*rows, tolerance)) if all(rows) else []
    return found + list(_of_metrics(*metrics, tolerance))


def _of_rows(old: Sequence[Row], new: Sequence[Row], tolerance: float) -> Iterator[Difference]:
    first, second = ({_key(row): row for row in rows} for rows in (old, new))
    both = [key for key in first if key in second]
    if alone := [*(first.keys() - second.keys()), *(second.keys() - first.keys())]:
        yield Difference(
            stage="completions", name="presence", where=_where(min(alone)),
            before=min(alone) in first, after=min(alone) in second, count=len(alone),
            total=len(alone) + len(both),
        )  # fmt: skip
    for stage, names in STAGES:
        wrong = [(key, name) for key in both
                 if (name := _unequal(first[key], second[key], names, tolerance))]  # fmt: skip
        if wrong:
            key, name = wrong[0]
            a, b = first[key].get(name), second[key].get(name)
            yield Difference(
                stage=stage, name=name, where=_where(key), before=_at(a, b, tolerance, 0),
                after=_at(a, b, tolerance, 1), count=len(wrong), total=len(both),
            )  # fmt: skip


def _of_metrics(old: Row, new: Row, tolerance: float) -> Iterator[Difference]:
    for name in dict.fromkeys((*METRICS, *(n for n in (*old, *new) if n.startswith(REPORTS)))):
        if not equal(old.get(name), new.get(name), tolerance):
            yield Difference(
                stage="metrics", name=name, where="", before=old.get(name), after=new.get(name),
                count=1, total=0,
            )  # fmt: skip


def _unequal(old: Row, new: Row, names: Sequence[str], tolerance: float) -> str:
    """Return the first of these columns that differs; "" if none does."""
    for wanted in names:
        columns = [wanted]
        if wanted.endswith("/"):
            columns = sorted({n for n in (*old, *new) if n.startswith(wanted)})
        for name in columns:
            if not equal(old.get(name), new.get(name), tolerance):
                return name
    return ""


def equal(a: Any, b: Any, tolerance: float) -> bool:
    """True if two values are equal; floats within the relative tolerance, NaN to NaN."""
    if isinstance(a, list) and isinstance(b, list):
        return a == b or (
            len(a) == len(b) and all(equal(x, y, tolerance) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or (
            math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
        )  # fmt: skip
    return bool(a == b)


def _at(a: Any, b: Any, tolerance: float, side: int) -> Any:
    """Return the value of a side, to be shown; for lists, the first element that differs."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pair = next(p for p in zip(a, b, strict=True) if not equal(*p, tolerance))
        return pair[side]
    return (a, b)[side]


def _key(row: Row) -> Key:
    return row["unit"], row["edge"], row["cell"]


def _where(key: Key) -> str:
    return f"completion {key[2]} of group {key[0]} ({key[1]})"


def short(value: Any) -> str:
    """Return a value for people."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}"
