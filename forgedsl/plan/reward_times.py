"""Seconds of a call of a reward, as the plan and the simulator assume them.

Program + measured seconds of calls (plan/calibration.py) -> seconds, measured or assumed

A plan leaves scores out of the time of a step: they run beside it, in processes of their own. It
says what it assumes of a call, and `forgec sim` waits as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.ir.program import Function, Program, PythonFunction, rewards_of
from forgedsl.plan.calibration import measured_calls
from forgedsl.records import dataclass
from forgedsl.sizes.hosts import Host
from forgedsl.types.flow import Role

SHORT = 0.001
"""seconds of a call of a Python function that only computes. Measured with the one of `forgec init
sums` on 2 CPUs: the longest of 256 calls takes 0.5 to 1.1 ms, and a call with its message 0.9 to
1.3 ms"""
SLOW = 0.05
"""seconds of a call that waits for something: a model, a network, a process, a file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Seconds of a call of a reward. `measured`: by a run, which calibrates the plan."""

    seconds: float
    measured: bool


def call_of(program: Program, known: Mapping[str, float], name: str) -> Call:
    """Return the seconds of a call of a reward that is not a pure function. `known` are measured
    seconds."""
    if name in known:
        return Call(seconds=known[name], measured=True)
    return Call(seconds=SLOW if _waits(program, name) else SHORT, measured=False)


def _waits(program: Program, name: str) -> bool:
    """Return True if a reward does more than compute."""
    decl = program.rewards[name]
    if not isinstance(decl.body, PythonFunction):
        return not isinstance(decl.body, Function)
    return decl.body.asynchronous or bool({*decl.settings["effects"].value} - {"random"})


def scores_text(program: Program, host: Host) -> str:
    """Describe what is assumed of the flow's rewards in Python, whose time a step leaves out; ""
    without any."""
    known = measured_calls(program, host)
    calls = [f"a call of {name} takes {1000 * s:.3g} ms" for name, s in _assumed(program, known)]
    return f"scores are left out: {', '.join(calls)} (assumed)" if calls else ""


def _assumed(program: Program, known: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    scores = [step.receiver for step in program.flow if Role.SCORES in step.roles]
    used = dict.fromkeys(name for score in scores for name in rewards_of(program, score))
    for name in used:
        if isinstance(program.rewards[name].body, PythonFunction):
            call = call_of(program, known, name)
            if not call.measured:
                yield name, call.seconds
