"""Progress of a run on stderr: a live panel on a terminal, plain lines elsewhere.

In: events. Out: at startup, what the run waits for and how long; then step, reward, loss, entropy,
reports of the loss, tokens/s, policy age, time left. Evals, notices and warnings are printed above
the panel as they happen.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from forgedsl.lower.job import Job
from forgedsl.notebook import can_redraw
from forgedsl.runs import syncs
from forgedsl.runs.text import clock, duration, number, sparkline
from forgedsl_runtime.events import Event
from forgedsl_runtime.readers.view import View

PLAIN_STEPS, PLAIN_SECONDS = 10, 10.0
"""a plain line is printed every PLAIN_STEPS steps, or after PLAIN_SECONDS"""
LONGEST_SILENCE = 120.0
"""between steps the current activity is printed after PLAIN_SECONDS, then at growing intervals up
to this many seconds"""

FIELDS = (
    ("reward", "reward_mean"),
    ("loss", "loss"),
    ("entropy", "entropy"),
    ("grad", "grad_norm"),
)


def open_progress(
    job: Job, notices: Sequence[str] = (), *, began: float | None = None
) -> Plain | Live:
    """Return the reader that fits stderr, after printing the notices. Times count from `began`, by
    default now. With 0 they count from the event `run.start`."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    for notice in notices:
        console.print(f"note: {notice}", style="dim", markup=False)
    opened = time.time()
    view = View(job.name, job.schedule.steps, began=opened if began is None else began, now=opened)
    if can_redraw(sys.stderr):  # FORCE_COLOR, which kernels of Jupyter set, makes no terminal
        return Live(view, console)
    plain = Plain(view)
    plain.watch()
    return plain


def event_line(view: View, event: Event) -> tuple[str, str] | None:
    """Return (style, text) if an event deserves a line of its own; else None."""
    match event["kind"]:
        case "warning":
            service = f"{event['service']}: " if event.get("service") else ""
            return "yellow", f"warning: {service}{event.get('text') or event['message']}"
        case "notice":
            return "bold yellow", event["text"]
        case "note":
            return "dim", f"note: {event['text']}"
        case "failure":
            return "bold red", " ".join(
                filter(None, ("failure:", event.get("service"), event["message"]))
            )
        case "service.ready":
            return "dim", f"{event['service']} is ready ({_took(event)})"
        case "eval.end" if event.get("value") is not None:
            return "cyan", eval_line(view)
    return None


def _took(event: Event) -> str:
    """Describe a start and its main phases: `1 min 3 s: imports 9 s, compile 12 s`."""
    phases = event.get("facts", {}).get("seconds", {})
    parts = ", ".join(f"{name} {duration(s)}" for name, s in phases.items() if s >= 1)
    return duration(event["seconds"]) + (f": {parts}" if parts else "")


def phase_text(view: View) -> str:
    """Describe the phase of a run: `starting services: trainer, generator`."""
    return f"{view.phase}: {', '.join(view.waiting)}" if view.waiting else view.phase


def eval_line(view: View) -> str:
    """Describe the last eval: `eval held_out at step 50: 0.742 (+0.170 since step 0)`."""
    last = view.evals[-1]
    text = f"eval {last.name} at step {last.step}: {number(last.value)}"
    pair = view.first_and_last_eval(last.name)
    if pair:
        text += f" ({last.value - pair[0].value:+.3f} since step {pair[0].step})"
    if last.failed:
        text += f"; {last.failed} of its answers could not be scored"
    return text


def smoothed_metrics(view: View) -> list[tuple[str, str]]:
    """Return (label, value) of the smoothed metrics that have a value, most important first."""
    shown = [(label, view.recent_mean(name)) for label, name in FIELDS]
    # includes reports of further `step` nodes, such as `critic/loss/...`
    reports = sorted(name for name in view.row if "loss/" in name)
    shown += [(name.replace("loss/", ""), view.recent_mean(name)) for name in reports]
    pairs = [(label, number(value)) for label, value in shown if value is not None]
    rate, age = view.tokens_per_second, view.recent_mean("age_mean")
    if rate is not None:
        pairs.append(("tok/s", number(rate)))
    if age is not None:
        worst = max(row["age_max"] for row in view.recent if row["age_max"] is not None)
        pairs.append(("age", f"{age:.1f} (max {worst})"))
    pairs += syncs.slow(view.recent)
    failed = view.recent_mean("scores_failed")
    if failed:
        answers = (view.recent_mean("sequences") or 0.0) + (
            view.recent_mean("rollouts_dropped") or 0.0
        )
        pairs.append(("failed scores", f"{failed / max(answers, failed):.0%}"))
    return pairs


class Plain:
    """Plain lines, for logs and pipes."""

    def __init__(self, view: View, stream: Any = None) -> None:
        self._view = view
        self._stream = stream or sys.stderr
        self._said_time = self._step_time = 0.0
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="progress", daemon=True)

    def watch(self) -> None:
        """Report during long silences from now on, until `close`."""
        self._watcher.start()

    def _watch(self) -> None:
        wait = PLAIN_SECONDS
        while not self._closed.wait(wait):
            silent = time.time() - self._said_time
            if silent < wait:
                wait = PLAIN_SECONDS
            elif self._view.began:
                self.break_silence(time.time())
                wait = min(2 * wait, LONGEST_SILENCE)

    def break_silence(self, now: float) -> None:
        """Print the current activity."""
        view = self._view
        view.now = max(view.now, now)
        waiting = f"still {phase_text(view)}" if view.waiting else phase_text(view)
        self._say(f"step {view.step + 1}: {view.activity}" if view.activity else waiting)

    def on_event(self, event: Event) -> None:
        view = self._view
        if view.count(event):  # most events change nothing else
            return
        view.on_event(event)
        if event["kind"] == "phase":
            self._say(phase_text(view))
        line = event_line(view, event)
        if line:
            self._say(line[1])
        if event["kind"] == "metrics" and self._due(event["time"]):
            self._step()

    def _due(self, now: float) -> bool:
        view = self._view
        late = now - self._step_time >= PLAIN_SECONDS
        return view.step % PLAIN_STEPS == 0 or late or view.step == view.steps

    def _step(self) -> None:
        view = self._view
        self._step_time = view.now
        of = f"/{view.steps}" if view.steps else ""
        body = "  ".join(f"{label} {value}" for label, value in smoothed_metrics(view))
        left = "" if view.seconds_left is None else f"  left {clock(view.seconds_left)}"
        self._say(f"step {view.step}{of}{view.smoothing_note}  {body}{left}")

    def _say(self, text: str) -> None:
        self._said_time = self._view.now
        # One write call: the watcher writes from another thread.
        self._stream.write(f"[{self._view.elapsed:7.1f} s] {text}\n")
        self._stream.flush()

    def close(self) -> None:
        self._closed.set()


class Live:
    """A panel that is redrawn in place."""

    def __init__(self, view: View, console: Any) -> None:
        from rich.live import Live as RichLive

        self._view = view
        self._live = RichLive(
            console=console, get_renderable=self._draw, refresh_per_second=5, transient=True
        )
        self._live.start()

    def on_event(self, event: Event) -> None:
        if self._view.count(event):  # most events change nothing else
            return
        self._view.on_event(event)
        if event["kind"] == "run.end":  # stop now: this may be the last event
            self._live.stop()
        line = event_line(self._view, event)
        if line:
            from rich.text import Text

            self._live.console.print(Text(line[1], style=line[0]))

    def _draw(self) -> Any:
        """Draw the panel; called by rich's own thread, between events."""
        from rich.console import Group

        self._view.now = max(self._view.now, time.time())
        return Group(*(self._training() if self._view.row else self._starting()))

    def _starting(self) -> list[Any]:
        from rich.spinner import Spinner

        view = self._view
        text = phase_text(view) if view.waiting else view.activity or phase_text(view)
        since = view.now - (view.phase_began if view.waiting else view.began)
        return [Spinner("dots", text=f"{text} ... {since:.0f} s", style="cyan")]

    def _training(self) -> list[Any]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        view = self._view
        head = Table.grid(padding=(0, 2))
        of = f"/{view.steps}" if view.steps else ""
        left = "" if view.seconds_left is None else f", {clock(view.seconds_left)} left"
        head.add_row(
            Text(view.name, style="bold"),
            Text(f"step {view.step}{of}{view.smoothing_note}"),
            ProgressBar(
                total=view.steps or None,
                completed=view.step,
                width=32,
                finished_style="bar.complete",
            ),
            Text(f"{clock(view.elapsed)}{left}", style="dim"),
        )
        line = Text()
        for label, value in smoothed_metrics(view):
            line.append(f"{label} ", style="dim").append(f"{value}   ")
        lines: list[Any] = [head, line]
        if len(view.rewards) > 1:
            spark = Text("reward ", style="dim")
            lines.append(spark.append(sparkline(list(view.rewards), 48), style="green"))
        if view.activity:
            lines.append(Text(view.activity, style="dim"))
        return lines

    def close(self) -> None:
        self._live.stop()
