"""Nearest names, for messages about unknown ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """ "did you mean `eps`?", or nothing when no candidate is near."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    near = get_close_matches(name.casefold(), by_folded, n=4, cutoff=0.6)
    if not near:
        return ""
    return f"did you mean {' or '.join(f'`{by_folded[match]}`' for match in near)}?"
