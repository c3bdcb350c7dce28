"""Packs the four events per completion of the event stream into one record per group of
events.jsonl.

    events --Packer.take--> records to write        records --unpacked--> events

A record of kind `group` holds the events of a group (or, with `eval`, of all completions of an
evaluation): its draw, and its spans as columns with an entry per span. A column with equal entries
is written once. Times are seconds after `from`. An unfinished group of a killed run has no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from forgedsl.operations.registry import operations

Event = dict[str, Any]
Fields = tuple[str, ...]

TIMES = ("start", "engine_start", "engine_end")
TICK, DIGITS = 4, 6
"""decimals of times in seconds; significant digits of other numbers"""
OWN = ("time", "kind", "id")
IN_SAMPLES = "examples"
"""fields of step.end that samples.jsonl has already"""


class Packer:
    """Collects the spans of each group until it is complete."""

    def __init__(self) -> None:
        packed = (each.name for each in operations() if each.of_groups)
        self._edges = {
            f"{kind}.{edge}": (kind, edge) for kind in packed for edge in ("start", "end")
        }
        """events of spans that belong to a group or an evaluation"""
        self._open: dict[int, float] = {}
        """by id of a span: its start"""
        self._spans: dict[Any, list[Event]] = {}
        self._drawn: dict[Any, Event] = {}

    def take(self, event: Event) -> list[Event]:
        """Return the records to write after this event."""
        edge = self._edges.get(event["kind"])
        if edge is not None:
            key = event.get("eval") or event.get("group")
            if key is not None:
                return self._span(*edge, key, event)
        match event["kind"]:
            case "group.drawn":
                self._drawn[event["group"]] = event
                return []
            case "group.ready":
                return self._group(event["group"], event["time"], {"ready": True})
            case "group.dropped":
                return [*self._group(event["group"], event["time"], {}), event]
            case "eval.end":
                return [*self._group(event["name"], event["time"], {}), event]
            case "step.end":
                return [*self._late(), _short(event)]
            case "run.end":  # the last event of a session
                return [*self.rest(), event]
        return [event]

    def rest(self) -> list[Event]:
        """Return the remaining records at the end of a run."""
        keys = [*dict.fromkeys((*self._drawn, *self._spans))]
        return [record for key in keys for record in self._group(key, self._last(key), {})]

    def _span(self, kind: str, edge: str, key: Any, event: Event) -> list[Event]:
        if edge == "start":
            self._open[event["id"]] = event["time"]
        elif (start := self._open.pop(event["id"], None)) is not None:
            record = {"span": kind, "start": start, **event}
            for name in OWN:
                del record[name]
            self._spans.setdefault(key, []).append(record)
        return []

    def _late(self) -> list[Event]:
        """Return a record of late spans, of nodes that fire on the batch after its groups are
        complete."""
        keys = [key for key in self._spans if key not in self._drawn and not isinstance(key, str)]
        return [record for key in keys for record in self._group(key, self._last(key), {})]

    def _last(self, key: Any) -> float:
        ends = [float(span["start"] + span["seconds"]) for span in self._spans.get(key, ())]
        return max(ends, default=float(self._drawn.get(key, {}).get("time", 0.0)))

    def _group(self, key: Any, time: float, more: Event) -> list[Event]:
        """Return the record of a group, if it has any events."""
        drawn, spans = self._drawn.pop(key, None), self._spans.pop(key, [])
        if drawn is None and not spans:
            return []
        begin = min([*(span["start"] for span in spans), *([drawn["time"]] if drawn else [])])
        whose: str = "eval" if isinstance(key, str) else "group"
        head: Event = {"time": time, "kind": "group", whose: key}
        if drawn:
            head |= {"source": drawn["source"], "row": drawn["row"]}
            head["drawn"] = round(drawn["time"] - begin, TICK)
        return [{**head, **more, "from": begin, "spans": _columns(spans, begin, whose)}]


def _short(event: Event) -> Event:
    short = {name: value for name, value in event.items() if name != IN_SAMPLES}
    if "rewards" in short:
        short["rewards"] = [_rounded(value) for value in short["rewards"]]
    return short


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _columns(spans: list[Event], begin: float, whose: str) -> list[Event]:
    """Return the spans of each kind and set of fields as an object of columns."""
    tables: dict[Fields, list[Event]] = {}
    for span in sorted(spans, key=lambda span: (span.get("row", 0), span.get("sibling", 0))):
        tables.setdefault((span["span"], *span), []).append(span)
    packed = []
    for rows in tables.values():
        table: Event = {"n": len(rows)}
        for name in (name for name in rows[0] if name != whose):
            values = _compact(name, [row[name] for row in rows], begin)
            table[name] = values[0] if values.count(values[0]) == len(values) else values
        packed.append(table)
    return packed


def _compact(name: str, values: list[Any], begin: float) -> list[Any]:
    if name in TIMES:
        return [value if value is None else round(value - begin, TICK) for value in values]
    if name == "seconds":
        return [round(value, TICK) for value in values]
    return [_rounded(value) for value in values] if float in map(type, values) else values


def unpacked(records: Iterable[Event]) -> Iterator[Event]:
    """Yield the events of a file; a record of a group is expanded to its events, span after
    span."""
    for number, record in enumerate(records):
        if record["kind"] == "group":
            yield from _events(record, number)
        else:
            yield record


def _events(record: Event, number: int) -> Iterator[Event]:
    begin = record["from"]
    whose: Event = {name: record[name] for name in ("group", "eval") if name in record}
    if "drawn" in record:
        source = {"source": record["source"], "row": record["row"]}
        yield {"time": begin + record["drawn"], "kind": "group.drawn", **whose, **source}
    for table in record["spans"]:
        columns = {k: v for k, v in table.items() if k not in ("n", "span")}
        for i in range(table["n"]):
            fields = {k: v[i] if isinstance(v, list) else v for k, v in columns.items()}
            start, seconds = begin + fields.pop("start"), fields["seconds"]
            fields |= {k: begin + fields[k] for k in TIMES if fields.get(k) is not None}
            shared = {**whose, "id": f"{number}:{i}"}
            yield {"time": start, "kind": f"{table['span']}.start", **shared}
            yield {"time": start + seconds, "kind": f"{table['span']}.end", **shared, **fields}
    if record.get("ready"):
        yield {"time": record["time"], "kind": "group.ready", **whose}
