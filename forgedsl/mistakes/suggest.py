"""Finds the nearest names of a misspelt one: restricted Damerau-Levenshtein, case-folded, best
four."""

from __future__ import annotations

from collections.abc import Iterable

MAX_SUGGESTIONS = 4


def distance(a: str, b: str) -> int:
    """Return the number of insertions, deletions, substitutions and adjacent transpositions from a
    to b."""
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, char_a in enumerate(a, 1):
        row = [i]
        for j, char_b in enumerate(b, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (char_a != char_b))
            if i > 1 and j > 1 and char_a == b[j - 2] and a[i - 2] == char_b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, above = above, row
    return above[-1]


def nearest(name: str, candidates: Iterable[str]) -> tuple[str, ...]:
    """Return the candidates that `name` could mean, best first."""
    folded = name.casefold()[:64]
    ranked = []
    if not folded:
        return ()
    for candidate in sorted(set(candidates)):
        other = candidate.casefold()
        if abs(len(other) - len(folded)) > max(len(folded), 4) // 2:
            continue
        cost = distance(folded, other)
        longest = max(len(folded), len(other))
        alike = cost <= max(1, longest // 3)
        if longest < 3:  # in a name of two letters, one wrong letter is half of the name
            alike = sorted(folded) == sorted(other)
        if alike or _shortens(folded, other):
            ranked.append((cost, candidate))
    return tuple(candidate for _, candidate in sorted(ranked)[:MAX_SUGGESTIONS])


def _shortens(short: str, name: str) -> bool:
    """True if `name` abbreviates a candidate, such as `grp` for `group`: letters in order, from the
    first."""
    rest = iter(name)
    return len(short) > 2 and short[0] == name[:1] and all(letter in rest for letter in short)


def as_written(written: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return names of files as they must be written in the place of a path: `rewards/min.py` and
    `mine.py` give `rewards/mine.py`."""
    path = written.rstrip("/")
    folder = path[: max(path.rfind("/"), path.rfind(":")) + 1]
    return tuple(f"{folder}{name}" for name in names)


def did_you_mean(names: tuple[str, ...]) -> str:
    """Return `did you mean `a`?`, or ""."""
    if not names:
        return ""
    quoted = [f"`{name}`" for name in names]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return f"did you mean {listed}?"
