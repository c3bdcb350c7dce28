"""Scales the measured latencies of a run to a job whose models or placement differ.

    Latencies of the run's plan --stored--> RUN/estimate.json --expected--> Latencies
    measured, expected, planned for the job --scaled--> measured x planned / expected

So a run of a small model also tells how far the plan of a larger one is off. For a job with the
run's own models and placement, planned and expected times are equal, and measured ones stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.records import fields, replace
from forgedsl.sim.latency import Engine, Latencies, Titan

ESTIMATE = "estimate.json"
TIMES = ("decode", "decode_sequence", "decode_context", "prefill", "load", "again")
"""of an engine, in seconds; all numbers of a trainer or frozen model are times"""


def stored(latencies: Latencies) -> dict[str, Any]:
    """Return the numbers of engines, trainers and frozen models, for `estimate.json`."""
    return {
        "engines": {name: _numbers(engine) for name, engine in latencies.engines.items()},
        "titans": {name: _numbers(titan) for name, titan in latencies.titans.items()},
    }


def _numbers(record: Engine | Titan) -> dict[str, float]:
    """Return the numbers of a record, without its distributions."""
    found = {field.name: getattr(record, field.name) for field in fields(type(record))}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def expected(planned: Latencies, folder: Path) -> Latencies:
    """Return `planned` with the times that the plan of the run in `folder` expected. A run of an
    earlier version did not store them: then `planned` is returned.

    Raises:
        ValueError: the file is not JSON.
    """
    try:
        known = json.loads((folder / ESTIMATE).read_text(encoding="utf-8")).get("latencies")
    except FileNotFoundError:
        known = None
    if known is None:
        return planned
    engines, titans = known["engines"], known["titans"]
    return replace(
        planned,
        engines={n: _with_numbers(e, engines.get(n, {})) for n, e in planned.engines.items()},
        titans={n: _with_numbers(t, titans.get(n, {})) for n, t in planned.titans.items()},
    )


def _with_numbers(record: Any, numbers: Mapping[str, float]) -> Any:
    """Replace the numbers of a record by stored ones. Another version may store others, too."""
    return replace(record, **{k: v for k, v in numbers.items() if k in _numbers(record)})


def scaled(measured: Latencies, expected: Latencies, planned: Latencies) -> Latencies:
    """Return the measured latencies of a run, scaled to a job by what the plans of both expect."""
    engines = {
        name: _engine(engine, expected.engines[name], planned.engines[name])
        for name, engine in measured.engines.items()
    }
    titans = {
        name: _multiplied(titan, expected.titans[name], planned.titans[name], (*_numbers(titan),))
        for name, titan in measured.titans.items()
    }
    return replace(measured, engines=engines, titans=titans)


def _engine(measured: Engine, expected: Engine, planned: Engine) -> Engine:
    """Scale an engine. Its running sequences and their cost in context are those of the job."""
    ran, now = (
        each.with_lengths(tokens=measured.tokens, prompt=measured.prompt)
        for each in (expected, planned)
    )
    found: Engine = _multiplied(measured, ran, now, TIMES)
    if not ran.again and now.decode:  # the run kept its KV caches: its swaps say nothing of that
        found = replace(found, again=now.again * found.decode / now.decode)
    return replace(
        found, context=now.context, siblings=now.siblings, max_running=planned.max_running
    )


def _multiplied(measured: Any, expected: Any, planned: Any, names: tuple[str, ...]) -> Any:
    """Multiply numbers of a record by planned / expected."""
    changed: Mapping[str, float] = {
        name: getattr(measured, name) * (getattr(planned, name) / getattr(expected, name))
        for name in names
        if getattr(expected, name)
    }
    return replace(measured, **changed)
