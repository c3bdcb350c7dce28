"""X815 chance-without-rng: an environment uses `random` instead of the `rng` it is given.

    def reset(self, task, rng): self.price = random.randrange(9)     # fires
    def reset(self, task, rng): self.price = rng.randrange(9)        # silent
    def reset(self, task, rng): self.rng = rng                       # silent: for `step`
    DICE = random.Random(7)                                # fires, if `reset` draws from it
    rng = random.Random(time.time_ns())                              # fires
    rng = numpy.random.default_rng(rng.getrandbits(32))              # silent: seeded from `rng`
    def reset(self, task, rng): self.dice = random.Random(1234)      # fires: one game for all tasks
    board = BOARDS[hash(str(task.target)) % len(BOARDS)]             # fires
    word = rng.choice(list({w for w in WORDS if len(w) == 6}))       # fires
    word = rng.choice(sorted({w for w in WORDS if len(w) == 6}))     # silent

`rng` has the same seed for all trajectories of a prompt. With other randomness, each of them plays
another game: an easy game looks like a good answer, and the advantage within a group is noise. Such
a run cannot be repeated either: in strands-labs robots #518 the same scene and policy gave a
different trajectory each time. Draw from `rng`, and from a sorted list: the order of a set of texts
differs from process to process (lerobot #4315).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forgedsl.lint.follow.programs import MethodFlow
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
SEEDED = (
    "random.Random", "numpy.random.default_rng", "numpy.random.RandomState",
    "numpy.random.Generator", "numpy.random.SeedSequence", "numpy.random.PCG64",
)  # fmt: skip
DRAWS = ("choice", "choices", "sample", "shuffle", "next")
OF_THE_HOST = (
    "uuid.uuid4", "uuid.uuid1", "os.urandom", "torch.rand", "torch.randint", "torch.randn",
    "torch.randperm",
)  # fmt: skip
"""calls that draw without a seed"""
SEEDS = ("random.seed", "numpy.random.seed")
"""calls that set a seed, which X814 reports"""
SAME_GAME = (
    "plays the same game for every task: it draws with a constant seed, and does not read `rng`"
)
OF_THE_TASK = "draw from the `rng` that `reset` is given: its seed is that of the task"
OF_AN_AGENT = "draw from `self.rng`, whose seed is the same for a whole group"
OF_RESET = (
    "draw from the `rng` that `reset` is given (`self.rng = rng`): its seed is the same for a "
    "whole group"
)


def check(view: View) -> Findings:
    if not python_environments(view):
        return
    from forgedsl.lint.follow.programs import label

    for env in python_environments(view):
        for what, event, here, help_ in _faults(view, env):
            yield finding(
                f"{env.what} `{env.env.name}` {what}",
                env.env.name_span,
                related=(label(view, here, event.file, event.node),),
                help=help_,
            )


def _faults(view: View, env: PythonClass) -> Iterator[tuple[str, Event, str, str]]:
    """Yield (what, event, label, help) for each kind of chance that is not of `rng`."""
    from forgedsl.lint.follow.programs import environment_flows

    methods = environment_flows(view, env)
    unordered, hashed = next(_unordered(methods), None), _hashed(methods)
    drawn = next((e for each in methods for e in each.flow.events if _draws(e)), None)
    same = _same_game(view, env) if drawn is None and unordered is None else None
    if unordered is not None:
        what = "draws from the members of a set, whose order differs between processes"
        yield what, unordered, "here", "draw from `sorted(...)` of the set"
    if hashed is not None:
        what = "chooses by `hash` of a text, which differs between processes"
        yield what, hashed, "here", "draw from `rng`, or use `zlib.crc32(text.encode())`"
    if same is not None:
        yield SAME_GAME, same, "here", OF_THE_TASK
    if drawn is not None:
        what = f"draws from `{_name(drawn)}`, not from its `rng`"
        yield what, drawn, "differs within a group", OF_AN_AGENT if env.env.body.agent else OF_RESET


def _same_game(view: View, env: PythonClass) -> Event | None:
    """Return the making of a generator with a constant seed, in a class whose `reset` reads neither
    the task nor its `rng`."""
    import ast as python

    from forgedsl.lint.follow.programs import environment_flows
    from forgedsl.lint.follow.values import UNKNOWN

    reset = env.methods.get("reset")
    if reset is None or env.env.body.agent:
        return None
    rng = [argument.arg for argument in reset.args.args[2:3]]
    read = {n.id for n in python.walk(reset) if isinstance(n, python.Name)}
    if not read.isdisjoint(rng):
        return None
    played = (m for m in environment_flows(view, env) if m.name != "__init__")
    for event in (e for m in played for e in m.flow.events):
        values = [*event.values, *event.keywords.values()]
        is_made = event.kind == "call" and event.name in SEEDED and values
        if is_made and all(value.const is not UNKNOWN for value in values):
            return event
    return None


def _unordered(methods: list[MethodFlow]) -> Iterator[Event]:
    """Yield draws of a generator from a list of the members of a set."""
    from forgedsl.lint.follow.values import UNORDERED

    for event in (event for method in methods for event in method.flow.events):
        is_draw = event.kind == "call" and event.name.rpartition(".")[2] in DRAWS
        if is_draw and event.values and UNORDERED in event.values[0].labels:
            yield event


def _hashed(methods: list[MethodFlow]) -> Event | None:
    """Return a call of `hash` on a text that seeds a generator, or whose remainder is taken."""
    import ast as python

    from forgedsl.lint.follow.values import IS_TARGET, TEXT

    events = [event for method in methods for event in method.flow.events if event.kind == "call"]
    found = {
        id(event.node): event
        for event in events
        if event.name == "hash" and event.values and {IS_TARGET, TEXT, "task text"}
        & event.values[0].labels
    }  # fmt: skip
    users: list[python.AST] = [e.node for e in events if _name(e) in (*SEEDED, *SEEDS)]
    for file in {id(event.file): event.file for event in found.values()}.values():
        users += [n for n in python.walk(file.module)
                  if isinstance(n, python.BinOp) and isinstance(n.op, python.Mod)]  # fmt: skip
    inside = (found.get(id(node)) for user in users for node in python.walk(user))
    return next((event for event in inside if event is not None), None)


def _draws(event: Event) -> bool:
    """True for a call that draws from the random state of the process, or from a new one."""
    from forgedsl.lint.follow.values import CLOCK

    name = _name(event)
    if event.kind == "call" and name in OF_THE_HOST:
        return True
    if event.kind != "call" or not name.startswith(("random.", "numpy.random.", "secrets.")):
        return False
    if name in SEEDS:
        return False
    if "()." in event.name:  # reported where the generator is made without a seed
        return _is_shared(event)
    given = [*event.values, *event.keywords.values()]
    return name not in SEEDED or not given or any(CLOCK in each.all for each in given)


def _is_shared(event: Event) -> bool:
    """True for a draw from a generator of the module, which all trajectories use."""
    owner = getattr(getattr(event.node, "func", None), "value", None)
    name = getattr(owner, "id", "")
    return name in event.file.assigned and event.receiver.name.endswith("()")


def _name(event: Event) -> str:
    return event.name.partition("()")[0]
