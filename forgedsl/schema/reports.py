"""Names that a `report` of a loss cannot have, because every step logs a metric of that name."""

from __future__ import annotations

from collections.abc import Sequence

LAST = "_last"
"""suffix of a report's name: its value in the last of several updates of a step"""
RESERVED_REPORTS = {
    "loss": "the value that is minimized",
    "entropy": "the mean entropy, which every step reports",
    "tokens": "the number of tokens, which every step counts",
    "result": "the result of an advantage",
}
"""reserved names, each with the metric that has it"""


def wrong_report(name: str, before: Sequence[str], all_: Sequence[str]) -> str:
    """Return why a report cannot have its name; "" if it can."""
    if name in RESERVED_REPORTS:
        return f"a report cannot be named `{name}`: the name is used for {RESERVED_REPORTS[name]}"
    if name in before:
        return f"report `{name}` is already defined"
    base = name.removesuffix(LAST)
    if base != name and base in all_:
        return (
            f"a report cannot be named `{name}`: the name is used for the last value of report "
            f"`{base}`"
        )
    return ""
