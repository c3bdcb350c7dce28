"""Current state of a run for display, updated by its events.

    events --> View --> progress.py (rich or plain lines), the summary at the end

The view holds no text layout and does no output.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from forgedsl.operations.registry import working
from forgedsl_runtime.events import Event
from forgedsl_runtime.readers.rows import Row, row_of

WINDOW = 20
"""number of recent steps for smoothed metrics and remaining time"""


@dataclass(slots=True)
class Eval:
    """One finished evaluation on held-out data."""

    name: str
    step: int
    value: float
    failed: int = 0
    """answers whose score failed; they are not part of the value"""


@dataclass(slots=True)
class View:
    """State of a run, built from its events."""

    name: str
    steps: int | None
    step: int = 0
    began: float = 0.0
    now: float = 0.0
    phase: str = "starting"
    """startup phase before the first step"""
    phase_began: float = 0.0
    waiting: list[str] = field(default_factory=list)
    """services that are not ready yet"""
    evaluating: str = ""
    under_way: Counter[str] = field(default_factory=Counter)
    """number of open spans, by kind of `work`"""
    work: dict[str, tuple[str, str]] = field(default_factory=lambda: spans_of_work())
    """by kind of span: (object, activity), such as ("completion", "being sampled")"""
    edges: dict[str, tuple[str, int]] = field(init=False)
    """by start or end event of a span in `work`: kind of the span, and 1 for a start or -1 for an
    end"""
    row: Row = field(default_factory=dict)
    recent: deque[Row] = field(default_factory=lambda: deque(maxlen=WINDOW))
    rewards: list[float] = field(default_factory=list)
    """mean reward of every step"""
    evals: list[Eval] = field(default_factory=list)

    def __post_init__(self) -> None:
        steps = (("start", 1), ("end", -1))
        self.edges = {f"{name}.{edge}": (name, step) for name in self.work for edge, step in steps}

    def count(self, event: Event) -> bool:
        """Count a start or an end in `work`; False for any other event."""
        edge = self.edges.get(event["kind"])
        if edge is None:
            return False
        self.now = event["time"]
        name, step = edge
        self.under_way[name] += step
        return True

    def on_event(self, event: Event) -> None:
        if self.count(event):
            return
        self.now = event["time"]
        match event["kind"]:
            case "run.start":
                self.began = self.began or event["time"]
                self.step = event.get("step", 0)
                self.steps = event.get("steps", self.steps)  # None for a Session
            case "phase":
                self.phase = event["text"]
                self.phase_began = event["time"]
                self.waiting = list(event.get("services", ()))
            case "notice" if self.phase != "running":  # interrupted during startup
                self.phase, self.waiting = "stopping services", []
            case "controller.start":
                self.phase = "running"
                self.evals += [Eval(name, *of) for name, of in event.get("first", {}).items()]
            case "service.ready":
                self.waiting = [name for name in self.waiting if name != event["service"]]
            case "eval.start":
                self.evaluating = event["name"]
            case "eval.end":
                self.evaluating = ""
                if event.get("value") is not None:
                    self.evals.append(
                        Eval(event["name"], event["step"], event["value"], event.get("failed", 0))
                    )
            case "metrics":
                self._metrics(event)

    def _metrics(self, event: Event) -> None:
        row = row_of(event)
        self.row, self.step = row, row["step"]
        self.recent.append(row)
        if row["reward_mean"] is not None:
            self.rewards.append(row["reward_mean"])

    @property
    def elapsed(self) -> float:
        return max(self.now - self.began, 0.0) if self.began else 0.0

    @property
    def activity(self) -> str:
        """Describe current activity, such as `eval held_out, 37 completions being sampled`; or
        ""."""
        found = [f"eval {self.evaluating}"] if self.evaluating else []
        for work, (thing, state) in self.work.items():
            count = self.under_way[work]
            plural = ("es" if thing.endswith("h") else "s") if count > 1 else ""
            found += [f"{count} {thing}{plural} {state}"] if count else []
        return ", ".join(found)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left, estimated from the recent step times."""
        pace = self.recent_mean("step_s")
        if self.steps is None or pace is None:
            return None
        return (self.steps - self.step) * pace

    def recent_mean(self, name: str) -> float | None:
        """Return the mean of a field over the recent steps."""
        values = [row[name] for row in self.recent if row.get(name) is not None]
        return sum(values) / len(values) if values else None

    @property
    def smoothing_note(self) -> str:
        """Note that metrics are means of several steps; "" for one."""
        return f" (mean of {len(self.recent)})" if len(self.recent) > 1 else ""

    @property
    def tokens_per_second(self) -> float | None:
        """Trained tokens per second over the recent steps. The mean is weighted by step time: a
        step whose batch was ready in advance is short, so its own rate is too high."""
        rows = [row for row in self.recent if row.get("tokens_per_s") is not None]
        seconds = sum(row["step_s"] for row in rows)
        tokens = sum(row["tokens_per_s"] * row["step_s"] for row in rows)
        return tokens / seconds if seconds else None

    def first_and_last_eval(self, name: str) -> tuple[Eval, Eval] | None:
        """Return the first and the last evaluation of this name, if there are two."""
        mine = [e for e in self.evals if e.name == name]
        return (mine[0], mine[-1]) if len(mine) > 1 else None


def spans_of_work() -> dict[str, tuple[str, str]]:
    """Return the spans of operations and of the export."""
    found = {each.name: (each.work, each.item_state) for each in working()}
    return found | {"export": ("export", "being written")}
