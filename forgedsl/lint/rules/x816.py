"""X816 target-unread: a Python reward takes the target without reading it, as do all other rewards.

    def score(response, target): return float("<answer>" in response)     # fires
    def score(response, target): return float(target in answers(response))    # silent
    def form(response): return float("<answer>" in response)      # silent if another reads it

    target = record(value = row.value, numbers = row.numbers)
    return float(value(said) == target["value"])     # fires: `numbers` is never compared
    def score(response, target, numbers): ...        # fires if nothing reads `numbers`

    def step(self, turn):                            # fires: `self.due` is kept and never read
        return Step(rewards={"right": float("done" in turn.text)}, done=True)

    grade = number(await self.ask(client, model, "How good is this answer, 0 to 10?"))
    return {"solved": grade / 10}                    # fires in an agent: the policy grades itself

The score then does not depend on correctness. In CoursIA #13614 a target that was never passed on
made the correctness 0 throughout. A game of numbers that looks at the result alone rewards the
target itself as an expression (reasoning-gym #265). Compare with the target; if a reward needs
none, leave out the parameter. A reward that calls a service or runs a program, which may judge
without a target, is silent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.ir.program import Constructor, Function, RewardDecl
from forgedsl.lint.environments import (
    PythonClass,
    argument,
    python_environments,
    rewards_of,
    steps_in,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View, place
from forgedsl.syntax import ast

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.python_bodies import Body

finding = rule(__doc__, "W")
SERVICES = ("subprocess.", "requests.", "httpx.", "aiohttp.", "urllib.", "asyncio.create_subp")
ANSWERS = ("math_equal", "exact", "contains")
TOLD = (
    "id", "idx", "index", "uid", "uuid", "key", "name", "source", "dataset", "split", "level",
    "difficulty", "category", "subject", "topic", "type", "kind", "task", "domain", "question",
)  # fmt: skip
"""parts of a target that say which row it is, and nothing about the answer"""
MAY_HOLD = ("row", "rollout", "messages")
"""sources that may contain the answer too, as columns may"""


def check(view: View) -> Findings:
    for env in python_environments(view):
        node, name = _claimed(env)
        here: Label | None = None
        if node is not None:
            here, name = Label(text="rewards", span=env.at(node)), f"self.{name}"
        else:
            here, name = _unread(view, env)
        graded = _grades_itself(view, env) if here is None else None
        if graded is not None:
            yield finding(
                f"the policy grades itself in `{env.env.name}`: nothing compares its answer with "
                "`task.target`",
                env.env.name_span,
                related=(graded,),
                help="compare the answer with `task.target`, or let another model grade it",
            )
        if here is not None:
            yield finding(
                f"`{env.env.name}` rewards words of the policy, and does not compare them "
                f"with `{name}`",
                env.env.name_span,
                related=(here,),
                help=f"compare the answer with `{name}`",
            )
    yield from _parts_unread(view)
    if view.program.environments or any(map(_reads, view.program.rewards.values())):
        return
    found = [one for one in python_rewards(view) if not _reported_by_x811(view, one)]
    asks = any(use.effect in ("net", "exec") for one in found for use in one.uses)
    if asks or any(_uses_answer(one) and not _is_blind(view, one) for one in found):
        return
    for one in found:
        for name in _given(one, "target"):
            yield finding(
                f"reward `{one.reward.name}` never reads `{name}`, and nothing else looks at the "
                "target",
                place_of(one.reward, view),
                related=(Label(text="given here", span=one.definition_span),),
                help=f"compare the answer with `{name}`, or leave the parameter out",
            )


def _parts_unread(view: View) -> Findings:
    """Yield findings for parts of a target, and columns, that no reward reads."""
    rewards = python_rewards(view)
    for one in rewards:
        inputs = inputs_of(one.function)
        given = inputs.by_name if isinstance(inputs, Inputs) and not inputs.lists else {}
        columns = [name for name, source in given.items() if source.startswith("column")]
        read = one.once(_names_read)
        looks = any(name in read for name in given if name not in columns)
        unread = [name for name in columns if name not in read] if looks else []
        for name in unread[:1]:
            yield finding(
                f"reward `{one.reward.name}` takes the column `{name}` and never reads it",
                place_of(one.reward, view),
                related=(Label(text="given here", span=one.definition_span),),
                help=f"check the answer against `{name}`, or leave the parameter out",
            )
    if view.program.environments or any(not one.once(_reads_by_key) for one in rewards):
        return
    texts = [one.source.text for one in rewards if _given(one, "target")]
    for dataset in drawn_from(view) if texts else ():
        made = dataset.settings["target"]
        parts = _record(made.value)
        others = any(map(_reads, view.program.rewards.values()))
        read = {name for name in parts for text in texts if re.search(f"[\"']{name}[\"']", text)}
        unread = [name for name in parts if name not in {*read, *TOLD}]
        if unread and len(unread) < len(parts) and not others:
            yield finding(
                f"no reward reads `{unread[0]}` of the target",
                place(made, dataset),
                help=f'check the answer against `target["{unread[0]}"]` too, or leave it out of '
                "the target",
            )


def _record(value: object) -> list[str]:
    """Return the names of `record(name = value, ...)`; nothing for other expressions."""
    value = getattr(value, "expr", value)
    if not isinstance(value, ast.Call) or value.function.text != "record":
        return []
    return [each.name for each in value.args if each.name]


def _names_read(one: PythonReward) -> set[str]:
    """Return the names that the body of a reward reads."""
    import ast as python

    nodes = (n for statement in one.definition.body for n in python.walk(statement))
    return {n.id for n in nodes if isinstance(n, python.Name)}


def _reads_by_key(one: PythonReward) -> bool:
    """True if a reward uses its target only as `target["name"]`, and imports no file beside it that
    could read more of it."""
    import ast as python

    targets = {*_given(one, "target")}
    keyed = set[int]()
    for node in python.walk(one.definition):
        match node:
            case python.Subscript(value=python.Name() as name, slice=python.Constant()):
                keyed.add(id(name))
            case python.Call(
                func=python.Attribute(value=python.Name() as name, attr="get"),
                args=[python.Constant(), *_],
            ):
                keyed.add(id(name))
    used = (n for n in python.walk(one.definition) if isinstance(n, python.Name))
    return all(id(name) in keyed for name in used if name.id in targets)


def _unread(view: View, env: PythonClass) -> tuple[Label | None, str]:
    """Return a step whose rewards depend on the turn and not on the target, in a class that keeps
    the target, and has no step that depends on it."""
    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import FILE, NET, READS_RESPONSE, READS_TARGET, TURN

    flows = environment_flows(view, env)
    kept = [
        event.node
        for method in flows
        for event in method.flow.events
        if event.kind == "change" and any(READS_TARGET in value.all for value in event.values)
    ]
    paid: Label | None = None
    for event in (e for method in flows for e in method.flow.events if e.kind == "call"):
        made = event.name.rpartition(".")[2] == "Step"
        rewards = event.argument("rewards", 1) if made else None
        if rewards is None:
            continue
        reads = rewards.all | event.control
        if {READS_TARGET, NET, TURN, FILE} & reads:
            return None, ""
        if READS_RESPONSE in reads and any(value is not None for value in rewards_of(event)):
            paid = paid or label(view, "rewards", event.file, event.node)
    return (paid, "task.target") if kept else (None, "")


def _grades_itself(view: View, env: PythonClass) -> Label | None:
    """Return the score of an agent that depends on replies of the policy, and on nothing else that
    could judge them, although its rows have a target."""
    import ast as python

    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import EXIT, FILE, NET, OTHER, OUTPUT, READS_TARGET

    targets = [dataset.settings["target"].value for dataset in drawn_from(view)]
    if not env.env.body.agent or not any(value is not None for value in targets):
        return None
    if any(getattr(node, "attr", "") == "target" for node in python.walk(env.module)):
        return None  # it may build what judges the answer
    flows = environment_flows(view, env)
    runs = [each.flow for each in flows if each.name == "run"]
    paid: Label | None = None
    for flow in runs:
        if flow.is_cut or any(_asks_others(event.name) for event in flow.events):
            return None
        for given in flow.returned:
            labels = given.value.all | given.control
            if {READS_TARGET, EXIT, FILE, OTHER, OUTPUT} & labels:
                return None
            if NET in labels:
                paid = paid or label(view, "the score", flow.file, given.node)
    return paid


def _asks_others(name: str) -> bool:
    """True for a call of a program, or of a service that is not the endpoint of a model."""
    return name.startswith(
        ("subprocess.", "requests.", "httpx.", "aiohttp.", "urllib.", "asyncio.cr")
    )


def _is_blind(view: View, one: PythonReward) -> bool:
    """True if a score depends in no way on the target that the reward is given."""
    from forgedsl.lint.follow.programs import reward_flow
    from forgedsl.lint.follow.values import NET, READS_TARGET

    inputs = inputs_of(one.function)
    known = isinstance(inputs, Inputs) and "**" not in inputs.by_name
    sources = {*inputs.by_name.values(), *inputs.by_place} if isinstance(inputs, Inputs) else set()
    flow = reward_flow(view, one) if known and not {*MAY_HOLD} & sources else None
    if flow is None or not flow.returned or flow.is_cut:
        return False
    reads = (each.value.all | each.control for each in flow.returned)
    return not any({READS_TARGET, NET} & labels for labels in reads)


def _claimed(env: PythonClass) -> tuple[python.AST | None, str]:
    """Return (step, attribute): a step that gives a reward only because the turn contains a text,
    and an attribute that `reset` assigns and nothing reads."""
    import ast as python

    from forgedsl.lint.python_bodies import Body

    reset, step = env.methods.get("reset"), env.methods.get("step")
    if reset is None or step is None:
        return None, ""
    attributes = [n for n in python.walk(env.module) if isinstance(n, python.Attribute)]
    read = {node.attr for node in attributes if isinstance(node.ctx, python.Load)}
    kept = [
        node.attr
        for node in python.walk(reset)
        if isinstance(node, python.Attribute) and isinstance(node.ctx, python.Store)
        if python.unparse(node.value) == "self" and node.attr not in read
    ]
    body = Body(step, env.module)
    for made in steps_in(step) if kept else ():
        rewards = argument(made, "rewards", 1)
        values = rewards.values if isinstance(rewards, python.Dict) else []
        if any(_is_claim(body, value) for value in values):
            return made, kept[-1]
    return None, ""


def _is_claim(body: Body, value: python.expr) -> bool:
    """True if a value depends only on which constant texts the turn contains."""
    import ast as python

    match body.value(value):
        case python.Call(func=python.Name(id="float" | "int" | "bool"), args=[inner]):
            return _is_claim(body, inner)
        case python.BoolOp(values=values):
            return all(_is_claim(body, each) for each in values)
        case python.Compare(left=python.Constant(), ops=[python.In()], comparators=[text]):
            return python.unparse(text).startswith("turn.text")
    return False


def _reads(reward: RewardDecl) -> bool:
    """True if a reward that is not in Python reads the target."""
    body, judge = reward.body, judge_of(reward)
    if isinstance(body, Function):
        return len(body.fields) > 1
    if judge is not None:
        return "{target}" in judge.args["prompt"] or "{row." in judge.args["prompt"]
    return isinstance(body, Constructor) and body.name in ANSWERS and body.args.get("text") is None


def _reported_by_x811(view: View, one: PythonReward) -> bool:
    """True if X811 reports the reward, because it is constant, for example."""
    from forgedsl.lint.follow.programs import reward_flow
    from forgedsl.lint.follow.values import UNKNOWN

    flow = reward_flow(view, one)
    scores = [each.value.const for each in flow.returned] if flow is not None else []
    if scores and UNKNOWN not in scores and len(set(map(repr, scores))) == 1:
        return True
    import ast as python

    from forgedsl.lint.python_returns import wrong

    returns = [n.value for n in python.walk(one.definition) if isinstance(n, python.Return)]
    constant = all(isinstance(value, python.Constant) for value in returns)
    return constant or wrong(one.definition)[1] is not None


def _given(one: PythonReward, source: str) -> list[str]:
    """Return the parameters that get a source as argument."""
    inputs = inputs_of(one.function)
    given = inputs.by_name if isinstance(inputs, Inputs) else {}
    return [name for name, found in given.items() if found == source]


def _uses_answer(one: PythonReward) -> bool:
    """True if a reward reads a parameter that is, or may contain, the target, or takes
    `**kwargs`."""
    import ast as python

    inputs = inputs_of(one.function)
    if not isinstance(inputs, Inputs) or inputs.by_place or "**" in inputs.by_name:
        return True
    read = {
        node.id
        for node in python.walk(one.definition)
        if isinstance(node, python.Name) and isinstance(node.ctx, python.Load)
    }
    holds = {
        name
        for name, source in inputs.by_name.items()
        if source == "target" or source in MAY_HOLD or source.startswith("column")
    }
    return bool(holds & read) or "locals" in read
