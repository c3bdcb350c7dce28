"""The views besides the dataflow as text: hosts, a clock of bars, the passes.

time       0 s            1.8 min
generator  111|222|   |333
trainer           |11|    |22
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.drawing.views import Pass
from forgedsl.ir.graph import Graph
from forgedsl.plan.cost import time_text
from forgedsl.plan.plan import Plan
from forgedsl.plan.text import placement_lines, table
from forgedsl.plan.timeline import SYNC, timeline

CLOCK = 72


def mesh_text(plan: Plan) -> str:
    """Hosts, meshes and GPUs, ending in a newline."""
    return "\n".join(placement_lines(plan)) + "\n"


def schedule_text(graph: Graph, plan: Plan) -> str:
    """The first steps, each lane a line of step numbers; ends in a newline."""
    bars = timeline(graph, plan)
    lines = plan.schedule.text.splitlines()
    if bars:
        end = max(bar.end for bar in bars)
        lanes = [mesh.service for mesh in plan.meshes] + [SYNC]
        rows: list[tuple[str, str]] = [("", _clock(end))]
        for lane in lanes:
            mine = [bar for bar in bars if bar.lane == lane]
            cells = [" "] * CLOCK
            for bar in mine:
                first = min(CLOCK - 1, int(CLOCK * bar.start / end))
                last = max(first + 1, min(CLOCK, round(CLOCK * bar.end / end)))
                for i in range(first, last):
                    cells[i] = str(bar.step % 10)
            if mine:
                rows.append((lane, "".join(cells)))
        lines += ["", *table(rows)]
        ages = [f"step {bar.step}: {bar.age}" for bar in bars if bar.age is not None]
        if ages:
            lines += ["", f"age of the batches: {', '.join(ages)}"]
    return "\n".join(lines) + "\n"


def _clock(end: float) -> str:
    last = time_text(end)
    half = time_text(end / 2)
    return f"0 s{half:^{CLOCK - 3 - len(last)}}{last}"


def passes_text(passes: Sequence[Pass]) -> str:
    """One line a pass, ending in a newline."""
    rows = [(p.name, p.what, p.found, f"-> {p.makes}") for p in passes]
    return "\n".join(table(rows)) + "\n"
