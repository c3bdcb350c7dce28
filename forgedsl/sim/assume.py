"""Applies the user's assumptions: `--assume generator.tokens='lognormal(200, 0.8)'`.

    Latencies + "NAME.FIELD=VALUE" -> Latencies; AssumptionError says what there is

Names are those of services, rewards, filter functions, datasets and environments, and `controller`.
Fields are those of the records in latency.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forgedsl.records import fields, replace
from forgedsl.sim.latency import Engine, Latencies
from forgedsl.sim.values import Dist, dist, seconds

CONTROLLER = "controller"
GROUPS = ("engines", "titans", "rewards", "filters", "data", "environments")
WHOLE = ("max_running", "rows")
"""fields that are counts"""
FOUND = ("longest",)
"""fields that only a calibration sets"""


class AssumptionError(Exception):
    """An invalid assumption; the message lists valid ones."""


def assume(latencies: Latencies, texts: Sequence[str]) -> Latencies:
    """Return `latencies` with these assumptions applied, in order."""
    for text in texts:
        latencies = _one(latencies, text)
    return latencies


def _one(latencies: Latencies, text: str) -> Latencies:
    path, equals, written = text.partition("=")
    name, dot, field = path.strip().rpartition(".")
    if not equals or not dot:
        raise AssumptionError(f"`{text}` is not an assumption; write NAME.FIELD=VALUE")
    if name == CONTROLLER:
        changed = _with(latencies.control, name, field, written)
        return replace(latencies, control=changed)
    for group in GROUPS:
        members: Mapping[str, Any] = getattr(latencies, group)
        if name in members:
            record = _with(members[name], name, field, written)
            if isinstance(record, Engine) and field in ("tokens", "prompt"):
                record = members[name].with_lengths(tokens=record.tokens, prompt=record.prompt)
                if field == "tokens":  # all lengths are known now
                    record = replace(record, longest=None)
            if isinstance(record, Engine) and field == "decode_sequence":
                record = _with_limited_context(record)
            notes = tuple(n for n in latencies.notes if not _speaks_of(n, name, field))
            changes: dict[str, Any] = {group: {**members, name: record}, "notes": notes}
            return replace(latencies, **changes)
    known = [CONTROLLER, *(n for group in GROUPS for n in getattr(latencies, group))]
    raise AssumptionError(f"`{name}` does not take time in this simulation{_hint(name, known)}")


def _with_limited_context(engine: Engine) -> Engine:
    """Return the engine with a `decode_context` that takes no more than `decode_sequence`, of which
    it is a part."""
    most = engine.decode_sequence / engine.context if engine.context else 0.0
    return replace(engine, decode_context=min(engine.decode_context, most))


def _with(record: Any, name: str, field: str, written: str) -> Any:
    known = [each.name for each in fields(record) if each.name not in FOUND]
    if field not in known:
        raise AssumptionError(f"`{name}` has no `{field}`{_hint(field, known)}")
    try:
        value: Any = _value(getattr(record, field), field, written)
    except ValueError as error:
        raise AssumptionError(f"{name}.{field}: {error}") from error
    return replace(record, **{field: value})


def _value(old: Any, field: str, written: str) -> Any:
    if isinstance(old, Dist):
        most = old.most if old.most < float("inf") else (old.points[-1] if old.points else old.most)
        return dist(written, most if field == "tokens" else float("inf"))
    value = seconds(written)
    return int(value) if field in WHOLE else value


def _speaks_of(note: str, name: str, field: str) -> bool:
    """True if a note is about a value that an assumption has replaced."""
    told = field in ("tokens", "seconds", "keep") or f" {field}" in note
    return f" {name} " in f" {note} " and told


def _hint(word: str, known: Sequence[str]) -> str:
    from forgedsl.mistakes.suggest import did_you_mean, nearest

    close = did_you_mean(nearest(word, list(known)))
    return f"; {close}" if close else f"; there is {', '.join(known)}"
