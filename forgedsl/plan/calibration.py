"""Calibration: corrects the estimates of the plan by times and lengths measured in runs.

calibration.json (`forgec calibrate`) -> Host.calibration -> times of the stages in plan/cost.py

    {"devices": {"H200": {"run": "grpo-1", "date": "2026-11-22", "times": {"sample": 0.67, ...}}},
     "lengths": {"grpo_math cpu": {"rollout": 0.79, ...}},
     "rewards": {"grpo_math cpu": {"correct": 0.0011, ...}}}

`times`: measured / estimated seconds for the same tokens, by operation and kind of device.
`lengths`: measured tokens / declared maximum, by name and profile of a run.
`rewards`: measured seconds of a call, likewise (plan/reward_times.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forgedsl.ir.program import Program
from forgedsl.sizes.devices import PEAKS
from forgedsl.sizes.hosts import Host


def device_kind(gpu: str | None, device: str) -> str:
    """Return the name of a kind of device: "H200", "cpu"."""
    words = (gpu or "").upper().replace("-", " ").split()
    return (
        next((word for word in words if word in PEAKS), " ".join(words))
        if device == "gpu"
        else "cpu"
    )


def factor(host: Host, device: str, op: str) -> float:
    """Return measured / estimated seconds; 1 if nothing was measured."""
    return float(_entry(host, device).get("times", {}).get(op, 1.0))


def share(program: Program, host: Host, node: str) -> float:
    """Return measured tokens of a node / their maximum; 1 if nothing was measured."""
    known = (host.calibration or {}).get("lengths", {})
    return float(known.get(run_name(program.name, program.profile), {}).get(node, 1.0))


def measured_calls(program: Program, host: Host) -> Mapping[str, float]:
    """Return the measured seconds of a call by reward."""
    known = (host.calibration or {}).get("rewards", {})
    calls: dict[str, float] = known.get(run_name(program.name, program.profile), {})
    return calls


def run_name(name: str, profile: str | None) -> str:
    return f"{name} {profile or 'none'}"


def calibration_text(program: Program, host: Host, devices: Iterable[str]) -> str:
    """Describe the runs that calibrate the estimates; "" if there are none."""
    parts = [
        f"{device_kind(host.gpu, device)} by run {entry['run']} of {entry['date']}"
        for device in sorted(set(devices))
        if (entry := _entry(host, device))
    ]
    if run_name(program.name, program.profile) in (host.calibration or {}).get("lengths", {}):
        parts.append("lengths as measured in the last run of this file")
    return f"calibrated: {', '.join(parts)}" if parts else ""


def _entry(host: Host, device: str) -> dict[str, Any]:
    known: dict[str, Any] = (host.calibration or {}).get("devices", {})
    found: dict[str, Any] = known.get(device_kind(host.gpu, device), {})
    return found
