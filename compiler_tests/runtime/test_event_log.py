"""The event log calls each reader with the events that it reads."""

from __future__ import annotations

from forgedsl_runtime.events import Event, EventLog, ReaderFailed


class Listener:
    def __init__(self, *kinds: str) -> None:
        self.kinds = frozenset(kinds) or None
        self.seen: list[str] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event["kind"])


def test_a_reader_with_kinds_gets_these_events_only() -> None:
    log, some, every = EventLog(), Listener("metrics", "run.end"), Listener()
    log.subscribe(some.on_event)
    log.emit("metrics")
    log.subscribe(every.on_event)
    for kind in ("phase", "metrics", "run.end"):
        log.emit(kind)
    assert some.seen == ["metrics", "metrics", "run.end"]
    assert every.seen == ["phase", "metrics", "run.end"]


def test_a_reader_that_gives_up_is_not_called_again_and_the_others_are() -> None:
    log, other = EventLog(), Listener()

    def gives_up(event: Event) -> None:
        raise ReaderFailed("the disk is gone")

    log.subscribe(gives_up)
    log.subscribe(other.on_event)
    log.emit("phase")
    log.emit("phase")
    assert sorted(other.seen) == ["phase", "phase", "warning"]
