"""Timeline of the first steps of a run, from the estimated times of its stages.

    Cost + schedule -> Bar (lane, step, start, end, age) ...

Batch i may be sampled when the weights of step i - S - 1 have been pulled (S is the lag, 0 in a
synchronous schedule); every service works on one batch at a time. The age of a batch is the number
of steps done when it is trained on, minus the version of the weights that began to sample it.
"""

from __future__ import annotations

from forgedsl.ir.graph import Graph, Node
from forgedsl.plan.plan import Plan
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

STEPS = 6
SYNC = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Work of one lane for one optimizer step, in seconds from the start. Steps count from 1."""

    lane: str
    node: str
    step: int
    start: float
    end: float
    age: int | None = None


def timeline(graph: Graph, plan: Plan, steps: int = STEPS) -> tuple[Bar, ...]:
    """Return the bars, step by step."""
    clock = _Clock(graph, plan)
    for step in range(1, steps + 1):
        clock.turn(step)
    return tuple(clock.bars)


class _Clock:
    """State of the clock: when each service is free, when credits returned, which weights are
    served."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        seconds = {stage.node: stage.seconds for stage in plan.cost.stages}
        nodes = [node for node in graph.nodes if node.name in seconds]
        self.seconds = seconds
        self.lane_of, self.engines = plan.cost.lane, plan.cost.engines
        self.before = [
            n for n in nodes if n.roles & {Role.SAMPLES, Role.MEASURES} and not n.at_step
        ]
        self.steps = [n for n in nodes if n.at_step or Role.UPDATES in n.roles]
        self.syncs = [n for n in nodes if Role.TRANSFERS in n.roles]
        self.lag = plan.schedule.staleness.lag
        self.every = plan.schedule.every
        self.bars: list[Bar] = []
        self.free: dict[str, float] = {}
        self.released = [0.0]
        """per step, the time when its credits returned"""
        self.served = [(0.0, 0)]
        """(time, version of the weights served from then on)"""

    def turn(self, step: int) -> None:
        ready = self.released[max(0, step - 1 - self.lag)]
        version = 0
        for node in self.before:
            bar = self._work(node, step, ready)
            ready = bar.end
            if Role.SAMPLES in node.roles and node.target not in self.engines:
                version = max(v for time, v in self.served if time <= bar.start)
        for node in self.steps:
            age = (
                step - 1 - version
                if Role.UPDATES in node.roles and self.every is not None
                else None
            )
            ready = self._work(node, step, ready, age).end
        if self.every is not None and step % self.every == 0:
            for node in self.syncs:
                length = self.seconds[node.name] * self.every
                ready = self._work(node, step, ready, lane=SYNC, length=length).end
            self.served.append((ready, step))
        self.released.append(ready)

    def _work(
        self,
        node: Node,
        step: int,
        ready: float,
        age: int | None = None,
        *,
        lane: str | None = None,
        length: float | None = None,
    ) -> Bar:
        lane = lane or self.engines.get(node.target, node.target)
        free = self.lane_of(lane)
        start = max(ready, self.free.get(free, 0.0))
        end = start + (self.seconds[node.name] if length is None else length)
        self.free[free] = end
        self.bars.append(Bar(lane=lane, node=node.name, step=step, start=start, end=end, age=age))
        return self.bars[-1]
