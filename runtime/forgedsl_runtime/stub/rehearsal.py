"""Definition of a rehearsal, and the marks in its output that tell it from a real run.

    Latencies + faults + seed --Rehearsal--> stub meshes and endpoints
    events --RehearsalLog--> the same events, marked, without learning metrics

A rehearsal writes no learning metrics: loss, gradient, entropy, rewards and evaluations are null.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forgedsl.sim.inject import Fault
from forgedsl.sim.latency import Latencies
from forgedsl_runtime.events import Event, EventLog

MARK = "rehearsal.json"
"""marks the run folder of a rehearsal"""
WHY = (
    "A rehearsal: no model was loaded, nothing was sampled or trained; times are sampled latencies."
)
LEARNED = (
    "loss", "grad_norm", "entropy", "lr", "reward_mean", "reward_std", "groups_dead",
    "dead_group_fraction", "value", "std", "rewards", "examples",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A rehearsal: latency model, faults and seed."""

    latencies: Latencies
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def write(self, run_dir: Path) -> None:
        """Write the mark to the run folder."""
        faults = [fault.text for fault in self.faults]
        assumed = list(self.latencies.notes)
        body = {"what": WHY, "latencies": self.latencies.source, "assumed": assumed}
        text = json.dumps({**body, "faults": faults}, indent=1)
        (run_dir / MARK).write_text(text + "\n", encoding="utf-8")


class RehearsalLog(EventLog):
    """Marks the events of a run as a rehearsal, and removes learning metrics."""

    def take(self, event: Event) -> None:
        if event["kind"] in ("run.start", "run.end", "metrics"):
            event["rehearsal"] = True
        if event["kind"] in ("metrics", "step.end", "score.end", "eval.end"):
            event |= {name: _cleared(name, value) for name, value in event.items()}
        super().take(event)


def _cleared(name: str, value: Any) -> Any:
    if name in ("rewards", "examples"):
        return []
    learned = name in LEARNED or name.startswith(("loss/", "reward/", "eval/"))
    return None if learned else value
