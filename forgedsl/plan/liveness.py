"""Liveness: models the credits of a planned graph as a Petri net, and lists where failures return
them.

    graph + schedule + capacities -> Net -> stuck? (A308 buffer-deadlock)
                                  `-> failure edges, for people

A transition fires if every place it consumes from has enough tokens. In a round, each transition
fires a fixed number of times; the round ends with the tokens it began with. So a net that can
complete a round never stops; one that cannot has a cycle that lacks tokens. Every failure edge
either returns the credit to its draw or ends the run at a deadline, so failures remove no tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.ir.graph import Graph, Level, Node
from forgedsl.plan.schedule import SchedulePlan
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

CREDITS, HELD = "credits", "credits held"
RELEASE, PULL, TAKE = "release", "pull", "take"
LONGEST_ROUND = 100
"""maximum steps of a round that are checked"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A transition that consumes and produces tokens, `firings` times per round."""

    name: str
    consumes: Mapping[str, int]
    produces: Mapping[str, int]
    firings: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A Petri net; `tokens` is the initial marking."""

    transitions: tuple[Transition, ...]
    tokens: Mapping[str, int]

    def stuck(self) -> tuple[Transition, ...]:
        """Transitions that cannot complete a round; empty for a live net."""
        _, left = self._round()
        return tuple(t for t in self.transitions if left[t.name])

    def cycle(self) -> tuple[tuple[str, str], ...]:
        """Return (transition, place it waits for) along a cycle of stuck transitions, in the order
        of the flow."""
        stuck = {t.name: t for t in self.stuck()}
        if not stuck:
            return ()
        tokens = self.standstill()
        walk: list[tuple[str, str]] = []
        name = min(stuck)
        while name not in [transition for transition, _ in walk]:
            lacking = [p for p, n in stuck[name].consumes.items() if tokens[p] < n]
            makers = [(p, t) for p in lacking for t in stuck.values() if p in t.produces]
            if not makers:
                return ((name, lacking[0]),)
            place, maker = makers[0]
            walk.append((name, place))
            name = maker.name
        start = [transition for transition, _ in walk].index(name)
        return tuple(reversed(walk[start:]))

    def standstill(self) -> Counter[str]:
        """The marking in which no transition of the round can fire any more."""
        return self._round()[0]

    def _round(self) -> tuple[Counter[str], dict[str, int]]:
        """Return (tokens, firings left) after firing as often as possible, at most one round."""
        tokens = Counter(self.tokens)
        left = {t.name: t.firings for t in self.transitions}
        moved = True
        while moved:
            moved = False
            for t in self.transitions:
                times = min([left[t.name], *(tokens[p] // n for p, n in t.consumes.items())])
                if times:
                    moved = True
                    left[t.name] -= times
                    for p, n in t.consumes.items():
                        tokens[p] -= n * times
                    for p, n in t.produces.items():
                        tokens[p] += n * times
        return tokens, left


def net_of(graph: Graph, schedule: SchedulePlan, capacities: Mapping[str, int]) -> Net:
    """Build the credit net of a planned graph. A round is the steps between two syncs. Only its
    last step changes the net, so a long round is cut to LONGEST_ROUND steps."""
    every = None if schedule.every is None else min(schedule.every, LONGEST_ROUND)
    steps = every or 1
    tokens = {"batch room": 1}
    take: Counter[str] = Counter({"batch room": 1})
    room: Counter[str] = Counter({"batch": 1})
    back: dict[str, int] = {}
    found: list[Transition] = []
    for source in graph.sources:
        quota = graph.quota(source)
        back[source.name] = quota
        share = schedule.staleness.credits * quota // schedule.staleness.prompts
        tokens[f"{source.name} {CREDITS}"] = share
        nodes = _group_nodes(graph, source)
        peers = frozenset(node.name for node in nodes)
        for node in nodes:
            consumes, produces = _edges(graph, node, peers, tokens, capacities[node.name])
            if node is source:
                consumes[f"{source.name} {CREDITS}"] += 1
            found.append(
                Transition(name=node.name, consumes=consumes, produces=produces,
                           firings=quota * steps)
            )  # fmt: skip
            if f"{node.name} to {TAKE}" in produces:
                take[f"{node.name} to {TAKE}"] = room[f"{node.name} room at {TAKE}"] = quota
    found.append(Transition(name=TAKE, consumes=take, produces=room, firings=steps))
    return Net(transitions=(*found, *_steps(every, back)), tokens=tokens)


def _group_nodes(graph: Graph, source: Node) -> tuple[Node, ...]:
    """Return the nodes that work on the groups (or batches) of a source."""
    return tuple(
        node
        for node in graph.nodes
        if node is source
        or (node.root == source.name and node.level is not Level.BATCH and not node.at_step)
    )


def _edges(
    graph: Graph, node: Node, peers: frozenset[str], tokens: dict[str, int], capacity: int
) -> tuple[Counter[str], Counter[str]]:
    """Return the tokens that a firing of `node` consumes and produces; add capacities of edges to
    `tokens`. `peers` are the nodes that work on the same groups."""
    consumes: Counter[str] = Counter()
    produces: Counter[str] = Counter()
    for edge in dict.fromkeys(i.edge for i in node.inputs):
        consumes[f"{edge} to {node.name}"] += 1
        produces[f"{edge} room at {node.name}"] += 1
    readers = [n.name for n in graph.nodes if any(i.edge == node.name for i in n.inputs)]
    inner = [name for name in readers if name in peers]
    for reader in (*inner, *([TAKE] if len(inner) < len(readers) or not readers else [])):
        consumes[f"{node.name} room at {reader}"] += 1
        produces[f"{node.name} to {reader}"] += 1
        tokens[f"{node.name} room at {reader}"] = capacity
    return consumes, produces


def _steps(every: int | None, back: Mapping[str, int]) -> Iterator[Transition]:
    """Add the step, which holds the credits of its groups. They return at once or with the next
    pull."""
    returned = Counter({f"{draw} {CREDITS}": quota for draw, quota in back.items()})
    if every is None:
        yield Transition(name="step", consumes={"batch": 1}, produces=returned + _one("batch room"))
        return
    produces = _one("batch room") + _one(HELD) + _one("weights")
    yield Transition(name="step", consumes={"batch": 1}, produces=produces, firings=every)
    yield Transition(name=RELEASE, consumes={HELD: 1}, produces=returned, firings=every - 1)
    yield Transition(name=PULL, consumes={HELD: 1, "weights": every}, produces=returned)


def _one(place: str) -> Counter[str]:
    return Counter({place: 1})


def check_liveness(
    graph: Graph, schedule: SchedulePlan, capacities: Mapping[str, int]
) -> list[Diagnostic]:
    """A308: a cycle of the plan has too few tokens, so that the run would deadlock.

    Credits and capacities derived from the schedule prevent this; the check proves it for each
    plan.
    """
    net = net_of(graph, schedule, capacities)
    waits = [_wait(net, transition, place) for transition, place in net.cycle()]
    if not waits:
        return []
    cause = min(waits, key=lambda wait: wait.rank)
    node = next((n for n in graph.nodes if n.name == cause.transition), graph.step)
    return [
        Diagnostic(
            code="A308",
            name="buffer-deadlock",
            severity=Severity.ERROR,
            message=f"the flow can deadlock: {cause.why}",
            span=node.span,
            notes=tuple(wait.text for wait in waits),
            help="queues and credits follow from the schedule and no setting changes them, so this "
            "is a bug in forgec: please report the file",
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """Why a transition of a deadlocked cycle waits. The one with the least `rank` is the cause."""

    transition: str
    rank: int
    why: str
    text: str


def _wait(net: Net, transition: str, place: str) -> _Wait:
    by_name = {t.name: t for t in net.transitions}
    who, start = _label(transition), net.tokens.get(place, 0)
    edge, is_room, reader = place.partition(" room at ")
    if is_room:
        takes = by_name[reader].consumes[f"{edge} to {reader}"]
        why = (
            f"{_label(reader)} takes {takes} of `{edge}` at once, but its queue holds only {start}"
        )
        text = f"{who} waits for space in its queue to {_label(reader)}"
        return _Wait(transition=transition, rank=0 if takes > start else 2, why=why, text=text)
    if place == f"{transition} {CREDITS}":
        text = f"{who} waits for a credit, but all {start} are in use"
        return _Wait(transition=transition, rank=1, why=text, text=text)
    need, left = by_name[transition].consumes[place], net.standstill()[place]
    text = f"{who} waits for {need} of `{place.partition(' to ')[0]}`, but there are only {left}"
    return _Wait(transition=transition, rank=3, why=text, text=text)


def _label(transition: str) -> str:
    return {TAKE: "the next batch", PULL: "the weight sync"}.get(transition, f"`{transition}`")


# ---- failure edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Effect of a failure on the credit of its group: the credit `returns`, or the run `ends`."""

    failure: str
    effect: str
    ends: bool


def credit_loops(graph: Graph, schedule: SchedulePlan) -> tuple[tuple[str, ...], ...]:
    """Return the path of a credit from each draw along the longest path, as node names."""
    return tuple(
        (*_longest(graph, source.name), *(["pull"] if schedule.every is not None else []))
        for source in graph.sources
    )


def _longest(graph: Graph, start: str) -> tuple[str, ...]:
    best: dict[str, tuple[str, ...]] = {start: (start,)}
    for node in graph.nodes:
        for i in node.inputs:
            way = best.get(i.edge)
            if way is not None and len(way) + 1 > len(best.get(node.name, ())):
                best[node.name] = (*way, node.name)
    return best[graph.step.name]


def exits(graph: Graph, schedule: SchedulePlan) -> tuple[Exit, ...]:
    """Return the failure edges of a planned graph."""
    return tuple(_exits(graph, schedule))


def _exits(graph: Graph, schedule: SchedulePlan) -> Iterator[Exit]:
    if graph.having(Role.SAMPLES):
        limit = max(16, 2 * schedule.staleness.credits)
        effect = f"its group is dropped, its credit is freed; {limit} in a row end the run"
        yield Exit(failure="a rollout fails", effect=effect, ends=False)
    if graph.having(Role.SCORES):
        effect = "dropped, or scored as `on_error`; above `max_failed` the run ends"
        yield Exit(failure="a reward fails", effect=effect, ends=False)
    if graph.having(Role.DROPS):
        limit_s = schedule.starve_timeout
        until = (
            f"the run ends after {_time(limit_s)} without a group"
            if limit_s
            else ("there is no time limit")
        )
        effect = f"its credit is freed; {until}"
        yield Exit(failure="a filter drops a group", effect=effect, ends=False)
    if graph.having(Role.SAMPLES) and schedule.every is not None and schedule.mode == "async":
        effect = "cannot happen: the worst age is within max_policy_age"
        yield Exit(failure="a group gets too old", effect=effect, ends=False)
    for sync in graph.syncs:
        deadline = _time(float(sync.settings.get("timeout", 300.0)))
        effect = f"the run ends with a checkpoint, after {deadline} at most"
        yield Exit(failure=f"a pull of {sync.settings['target']} fails", effect=effect, ends=True)
    effect = "the last groups form a smaller batch, then the run ends"
    yield Exit(failure="the data end", effect=effect, ends=True)


def _time(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
