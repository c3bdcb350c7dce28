"""Seconds of a call of a reward, as the plan and the simulator assume them.

Program + measured seconds of calls (plan/calibration.py) -> seconds, measured or assumed

Rewards in Python are called beside the stages of a step, in processes of their own. If their time
was measured, a step takes as long as its calls; an assumed time is only shown. `forgec sim` waits
as long for a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Function, Program, PythonFunction, rewards_of
from forgedsl.plan.calibration import measured_calls
from forgedsl.plan.sizes import completions
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The calls of a reward in one step. `call`: seconds of one; `at_once`: how many each of the
    `procs` processes handles concurrently."""

    reward: str
    calls: int
    call: float
    procs: int
    at_once: int
    measured: bool

    @property
    def seconds(self) -> float:
        """Seconds of a step in which the processes work."""
        return self.calls * self.call / (self.procs * self.at_once)


def scorings_of(program: Program, host: Host, graph: Graph) -> tuple[Scoring, ...]:
    """Return the calls of the flow's rewards in Python, and of monitors in Python."""
    known, calls = measured_calls(program, host), dict.fromkeys(program.rewards, 0)
    monitors = [
        name for name, reward in program.rewards.items() if reward.settings["monitor"].value
    ]
    for node in graph.having(Role.SCORES):
        for name in {*rewards_of(program, node.target), *monitors} & calls.keys():
            calls[name] += sum(completions(graph, graph.node(each)) for each in node.samplers)
    return tuple(_scorings(program, known, calls))


def _scorings(
    program: Program, known: Mapping[str, float], calls: Mapping[str, int]
) -> Iterator[Scoring]:
    for name, count in calls.items():
        decl = program.rewards[name]
        if count and isinstance(decl.body, PythonFunction):
            call = call_of(program, known, name)
            yield Scoring(
                reward=name, calls=count, call=call.seconds, measured=call.measured,
                procs=decl.settings["procs"].value,
                at_once=decl.settings["concurrency"].value if decl.body.asynchronous else 1,
            )  # fmt: skip
