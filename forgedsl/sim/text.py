"""Prints a simulated run: step time, idle times, policy ages, and the cost of faults.

Result, Latencies, the run without the faults -> lines
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.diagnostics import counted
from forgedsl.plan.cost import time_text
from forgedsl.sim.inject import Fault
from forgedsl.sim.latency import Latencies
from forgedsl.sim.result import Result, summary

WIDTH = 40
FULL = 0.9
"""busy fraction from which a part limits the step time"""


def render(
    name: str,
    result: Result,
    latencies: Latencies,
    faults: Sequence[Fault] = (),
    undisturbed: Result | None = None,
    *,
    longest: Result | None = None,
    host: str = "",
) -> str:
    """Return the text of `forgec sim`. `longest` is the run with the longest completions that its
    calibration leaves possible."""
    lines = [f"simulation of {name}: {_ended(result)}", *([f"  {host}"] if host else []), ""]
    lines += _times(result, longest)
    if undisturbed is not None:
        lines += ["", *_effect(result, undisturbed, faults)]
    lines += ["", *_busy(result, latencies)]
    lines += ["", *_ages(result)]
    lines += ["", f"latencies from {latencies.source}"]
    lines += [f"  assumed: {note}" for note in latencies.notes]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _ended(result: Result) -> str:
    how = {"steps": "", "data": ", then the data ended"}.get(
        result.ended, f", then the run ended: {result.ended}"
    )
    steps = counted(len(result.steps), "step")
    return f"{steps} in {time_text(result.seconds)} of simulated time{how}"


def _times(result: Result, longest: Result | None) -> list[str]:
    if not result.steps:
        return ["no step was completed"]
    found = summary(result)
    step = found["step_s"]
    warm = f"   (without the first {counted(result.warm, 'step')})" if result.warm else ""
    lines = [
        f"step time   mean {time_text(step['mean'])}, median {time_text(step['median'])}, "
        f"95 % {time_text(step['p95'])}, longest {time_text(step['max'])}{warm}",
    ]
    if longest is not None and longest.steps:
        most = summary(longest)["step_s"]
        lines.append(
            f"range       mean {time_text(step['mean'])} to {time_text(most['mean'])}: "
            "the calibration does not know how long completions get beyond the run's limit"
        )
    lines.append(f"throughput  {found['tokens_per_s']:,.0f} tokens/s trained")
    dropped = found["groups_dropped"]
    if dropped:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
        lines.append(f"dropped     {reasons} groups")
    if result.deaths:
        lines.append(f"deaths      {result.deaths}, with {result.lost:,} requests sampled again")
    return lines


def _effect(result: Result, undisturbed: Result, faults: Sequence[Fault]) -> list[str]:
    """Return the lines on step time with and without the faults."""
    before, after = undisturbed.step_seconds, result.step_seconds
    change = f" ({after / before - 1:+.0%})" if before and after else ""
    return [
        *(f"fault       {fault.text}" for fault in faults),
        f"effect      step time {time_text(before)} -> {time_text(after)}{change}; the whole run "
        f"{time_text(undisturbed.seconds)} -> {time_text(result.seconds)}",
    ]


def _busy(result: Result, latencies: Latencies) -> list[str]:
    """Describe how busy each part is."""
    notes = {}
    for name, count in result.replicas.items():
        stop = result.stopped[name] / (result.seconds * count) if result.seconds else 0.0
        rate = result.sampled[name] / result.seconds if result.seconds else 0.0
        note = f"{counted(count, 'replica')}, {rate:,.0f} tokens/s"
        note += (
            f", {stop:.0%} of the time stopped for prefill and new weights" if stop >= 0.005 else ""
        )
        notes[name] = note
    width = max(map(len, result.busy))
    lines = ["busy"]
    for name, share in result.busy.items():
        bar = "#" * round(share * 20)
        lines.append(f"  {name:<{width}}  {share:>4.0%}  {bar:<20}  {notes.get(name, '')}")
    name, share = max(result.busy.items(), key=lambda row: row[1])
    if share >= FULL:
        lines.append(f"  {name} sets the step time")
        if any(note.startswith(f"a call of {name} takes ") for note in latencies.notes):
            lines[-1] += f", by an assumption below; if known: --assume {name}.seconds=S"
    return lines


def _ages(result: Result) -> list[str]:
    if not result.versioned:
        return ["policy age  samples have no age, because no weights are synced"]
    ages = result.ages
    total = ages.total()
    lines = [f"policy age  worst {result.worst_age}, planned at most {result.age_bound}"]
    for age in range(result.worst_age + 1):
        share = ages[age] / total if total else 0.0
        lines.append(f"  {age:>3}  {share:>6.1%}  {'#' * round(share * WIDTH)}")
    return lines
