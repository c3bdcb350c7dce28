"""Packs the four events per completion of the event stream into one record per group of
events.jsonl.

    events --Packer.take--> records to write        records --unpacked--> events

A record of kind `group` holds the events of a group (or, with `eval`, of all completions of an
evaluation): its draw, and its spans as columns with an entry per span. A column with equal entries
is written once. Times are seconds after `from`. An unfinished group of a killed run has no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from forgedsl.operations.registry import operations

Event = dict[str, Any]
Fields = tuple[str, ...]

TIMES = ("start", "engine_start", "engine_end")
TICK, DIGITS = 4, 6
"""decimals of times in seconds; significant digits of other numbers"""
OWN = frozenset(("time", "kind", "id"))
"""fields of an event that are no fields of its span"""
READY: Event = {"ready": True}
IN_SAMPLES = "examples"
"""fields of step.end that samples.jsonl has already"""


Span = tuple[str, float, Event]
"""a finished span: its kind, its start, and the event of its end"""


class Packer:
    """Collects the spans of each group until it is complete."""

    def __init__(self) -> None:
        self._takes: dict[str, Callable[[Event], Sequence[Event]]] = {
            "group.drawn": self._draw,
            "group.ready": lambda event: self._group(event["group"], event["time"], READY),
            "group.dropped": lambda event: [*self._group(event["group"], event["time"], {}), event],
            "eval.end": lambda event: [*self._group(event["name"], event["time"], {}), event],
            "step.end": lambda event: [*self._late(), _short(event)],
            # the last event of a session
            "run.end": lambda event: [*self.rest(), event],
        }
        """by kind of event: what takes it"""
        for each in operations():
            if each.of_groups:
                self._takes[f"{each.name}.start"] = self._start
                self._takes[f"{each.name}.end"] = partial(self._end, each.name)
        self._open: dict[int, float] = {}
        """by id of a span: its start"""
        self._spans: dict[Any, list[Span]] = {}
        self._drawn: dict[Any, Event] = {}

    def take(self, event: Event) -> Sequence[Event]:
        """Return the records to write after this event."""
        take = self._takes.get(event["kind"])
        return (event,) if take is None else take(event)

    def _draw(self, event: Event) -> Sequence[Event]:
        self._drawn[event["group"]] = event
        return ()

    def _start(self, event: Event) -> Sequence[Event]:
        """Note the start of a span, if it belongs to a group or an evaluation."""
        if _owner(event) is None:
            return (event,)
        self._open[event["id"]] = event["time"]
        return ()

    def _end(self, kind: str, event: Event) -> Sequence[Event]:
        owner = _owner(event)
        if owner is None:
            return (event,)
        start = self._open.pop(event["id"], None)
        if start is not None:
            spans = self._spans.get(owner)
            if spans is None:
                spans = self._spans[owner] = []
            spans.append((kind, start, event))
        return ()

    def rest(self) -> list[Event]:
        """Return the remaining records at the end of a run."""
        keys = [*dict.fromkeys((*self._drawn, *self._spans))]
        return [record for key in keys for record in self._group(key, self._last(key), {})]

    def _late(self) -> list[Event]:
        """Return a record of late spans, of nodes that fire on the batch after its groups are
        complete."""
        keys = [key for key in self._spans if key not in self._drawn and not isinstance(key, str)]
        return [record for key in keys for record in self._group(key, self._last(key), {})]

    def _last(self, key: Any) -> float:
        ends = [float(start + end["seconds"]) for _, start, end in self._spans.get(key, ())]
        return max(ends, default=float(self._drawn.get(key, {}).get("time", 0.0)))

    def _group(self, key: Any, time: float, more: Event) -> list[Event]:
        """Return the record of a group, if it has any events."""
        drawn, spans = self._drawn.pop(key, None), self._spans.pop(key, [])
        if drawn is None and not spans:
            return []
        begin = min([*(start for _, start, _ in spans), *([drawn["time"]] if drawn else [])])
        whose: str = "eval" if isinstance(key, str) else "group"
        head: Event = {"time": time, "kind": "group", whose: key}
        if drawn:
            head |= {"source": drawn["source"], "row": drawn["row"]}
            head["drawn"] = round(drawn["time"] - begin, TICK)
        return [{**head, **more, "from": begin, "spans": _columns(spans, begin, whose)}]


def _owner(event: Event) -> Any:
    """Return the evaluation or the group that a span belongs to, if there is one."""
    return event.get("eval") or event.get("group")


def _short(event: Event) -> Event:
    short = {name: value for name, value in event.items() if name != IN_SAMPLES}
    if "rewards" in short:
        short["rewards"] = [_rounded(value) for value in short["rewards"]]
    return short


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _columns(spans: list[Span], begin: float, whose: str) -> list[Event]:
    """Return the spans of each kind and set of fields as an object of columns."""
    tables: dict[Fields, list[Span]] = {}
    for span in sorted(spans, key=_place):
        tables.setdefault((span[0], *span[2]), []).append(span)
    packed = []
    for (kind, *names), rows in tables.items():
        table: Event = {"n": len(rows), "span": kind}
        table["start"] = _column("start", [start for _, start, _ in rows], begin)
        for name in names:
            if name != whose and name not in OWN:
                table[name] = _column(name, [end[name] for _, _, end in rows], begin)
        packed.append(table)
    return packed


def _place(span: Span) -> tuple[int, int]:
    end = span[2]
    return end.get("row", 0), end.get("sibling", 0)


def _column(name: str, values: list[Any], begin: float) -> Any:
    """Return a column as it is written: one value if all are equal."""
    if values.count(values[0]) == len(values):
        return _compact(name, values[:1], begin)[0]
    values = _compact(name, values, begin)
    return values[0] if values.count(values[0]) == len(values) else values


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
